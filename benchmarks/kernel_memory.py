"""Stand-ins on CPU for GPU kernels: linear attention and Mamba. They hold the tensors that the kernels hold.

Without these kernels transformers runs plain torch, which holds more. With the stand-ins the memory of a
step on CPU is that of a step with the kernels. Only sizes, data types and lifetimes are those of the kernels; all
values are zeros. They were read from the versions below.

- fla: https://github.com/fla-org/flash-linear-attention @bc3b101dcb71
- mamba_ssm: https://github.com/state-spaces/mamba @e9594ce1c732
- causal_conv1d: https://github.com/Dao-AILab/causal-conv1d @0d2252d161f2
"""

import importlib
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.amp import custom_bwd, custom_fwd

DELTA_CHUNK = 64
"""Tokens of a chunk of the delta rule."""
SCAN_CHUNK = 2048
"""Tokens of a chunk of Mamba 1's scan."""
MULTIPROCESSORS = 132
"""Of an H100, by which Mamba 2 divides its sums."""
DELTA_RULE = ("qwen3_next", "qwen3_5_text", "qwen4_exp_text")
KIMI_RULE = ("glm5_next_text", "kimi_linear")
MIXERS = {
    "bamba": "BambaMixer",
    "falcon_h1": "FalconH1Mixer",
    "granitemoehybrid": "GraniteMoeHybridMambaLayer",
    "jamba": "JambaMambaMixer",
    "nemotron_h": "NemotronHMamba2Mixer",
}
"""The classes of transformers that run Mamba."""


def install(model_type: str) -> None:
    """Let transformers' classes of this type run the stand-ins, from now on and in this process."""
    if model_type not in (*DELTA_RULE, *KIMI_RULE, *MIXERS):
        return
    name = model_type.removesuffix("_text")
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    if model_type in DELTA_RULE:
        vars(module).update(
            causal_conv1d_fn=causal_conv1d_fn,
            chunk_gated_delta_rule=chunk_gated_delta_rule,
            # Its name in transformers 5.19, whose norm is no kernel.
            torch_chunk_gated_delta_rule=chunk_gated_delta_rule,
            FusedRMSNormGated=FusedRMSNormGated,
        )
        # The classes build the norm on the current GPU.
        torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment, return-value]
        return
    if model_type in KIMI_RULE:
        vars(module).update(causal_conv1d_fn=causal_conv1d_fn, chunk_kimi_delta_attention=chunk_kda)
        return
    mixer = getattr(module, MIXERS[model_type])
    mixer.forward = lambda self, hidden_states, *_args, **_keys: self.cuda_kernels_forward(hidden_states)
    vars(module).update(lazy_load_kernel={"causal-conv1d": CAUSAL_CONV1D, "mamba-ssm": MAMBA_SSM}.get)


class _Convolution(torch.autograd.Function):
    """causal_conv1d causal_conv1d_interface.py CausalConv1dFn."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if 1 not in (x.stride(1), x.stride(2)):
            x = x.contiguous()
        ctx.save_for_backward(x, weight, bias)
        return torch.zeros_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        if 1 not in (gradient.stride(1), gradient.stride(2)):
            gradient = gradient.contiguous()
        of_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        return torch.zeros_like(x), torch.zeros_like(weight, dtype=torch.float32), of_bias


def causal_conv1d_fn(x: Tensor, weight: Tensor, bias: Tensor | None = None, **_options: Any) -> Tensor:
    """Stand in for causal_conv1d_fn; `x` is [batch, channels, tokens]."""
    output: Tensor = _Convolution.apply(x, weight, bias)
    return output


class _DeltaRule(torch.autograd.Function):
    """fla ops/gated_delta_rule/chunk.py ChunkGatedDeltaRuleFunction, in the order of its functions."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
        q, k, v, g, beta = (each.contiguous() for each in (q, k, v, g, beta))
        q, q_rstd = torch.zeros_like(q), torch.zeros(q.shape[:-1])
        k, k_rstd = torch.zeros_like(k), torch.zeros(k.shape[:-1])
        g, o, a = _delta_forward(k, v, g)
        ctx.save_for_backward(q, q_rstd, k, k_rstd, v, g, beta, a)
        return o

    @staticmethod
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor, ...]:
        q, _, k, _, v, g, beta, _ = ctx.saved_tensors
        do = do.contiguous()
        dq, dk, dv, db, dg = _delta_backward(q, k, v, g, beta, do)
        dq = torch.zeros_like(dq)
        dk = torch.zeros_like(dk)
        return dq, dk, dv, dg, db


def _states(k: Tensor, v: Tensor) -> Tensor:
    batch, tokens, heads, width = v.shape
    return k.new_zeros(batch, -(-tokens // DELTA_CHUNK), heads, k.shape[-1], width)


def _delta_forward(k: Tensor, v: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the summed decay, the output and the triangular matrices of the chunks."""
    summed = torch.zeros_like(g, dtype=torch.float32)
    a = k.new_zeros(*v.shape[:-1], DELTA_CHUNK)
    _w, u = k.new_zeros(*v.shape[:-1], k.shape[-1]), torch.zeros_like(v)
    _h, _v_new = _states(k, v), torch.zeros_like(u)
    return summed, torch.zeros_like(v), a


def _delta_backward(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, do: Tensor) -> tuple[Tensor, ...]:
    w, u = k.new_zeros(*v.shape[:-1], k.shape[-1]), torch.zeros_like(v)
    _h, _v_new = _states(k, v), torch.zeros_like(u)
    dv = torch.zeros_like(do)
    _dh, dv = _states(k, v), torch.zeros_like(dv)
    keys = (*v.shape[:-1], k.shape[-1])
    dq, dk, dg, _dw = q.new_zeros(keys), k.new_zeros(keys), torch.zeros_like(g), torch.zeros_like(w)
    _dk_other, dv, _dg_other, db = k.new_zeros(keys), torch.zeros_like(v), torch.zeros_like(g), torch.zeros_like(beta)
    return dq, dk, dv, db, torch.zeros_like(dg)


def chunk_gated_delta_rule(
    query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, **_options: Any
) -> tuple[Tensor, None]:
    """Stand in for chunk_gated_delta_rule; heads are [batch, tokens, heads, width]."""
    return _DeltaRule.apply(query, key, value, g, beta), None


class _KimiRule(torch.autograd.Function):
    """fla ops/kda/chunk.py ChunkKDAFunction, with the functions of chunk_fwd.py and chunk_bwd.py in their order."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
        q, k, v, g, beta = (each.contiguous() for each in (q, k, v, g, beta))
        q, q_rstd = torch.zeros_like(q), torch.zeros(q.shape[:-1])
        k, k_rstd = torch.zeros_like(k), torch.zeros(k.shape[:-1])
        summed = torch.zeros_like(g, dtype=torch.float32)
        a_qk, a_kk = k.new_zeros(*v.shape[:-1], DELTA_CHUNK), k.new_zeros(*v.shape[:-1], DELTA_CHUNK)
        _w, u, _kg = torch.zeros_like(k), torch.zeros_like(v), torch.zeros_like(k)
        _h, _v_new = _states(k, v), torch.zeros_like(u)
        o = torch.zeros_like(v)
        ctx.save_for_backward(q, q_rstd, k, k_rstd, v, summed, g, beta, a_qk, a_kk)
        return o

    @staticmethod
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor, ...]:
        q, _, k, _, v, summed, g, beta, a_qk, a_kk = ctx.saved_tensors
        do = do.contiguous()
        dq, dk, dv, db, dg = _kimi_backward(q, k, v, summed, beta, a_qk, a_kk, do)
        dg = torch.zeros_like(dg)
        dq, dk = torch.zeros_like(q), torch.zeros_like(k)
        return dq, dk, dv, dg.to(g), db.to(beta)


def _kimi_backward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, a_qk: Tensor, a_kk: Tensor, do: Tensor
) -> tuple[Tensor, ...]:
    _w, u, _qg, _kg = torch.zeros_like(k), torch.zeros_like(v), torch.zeros_like(q), torch.zeros_like(k)
    _h, _v_new = _states(k, v), torch.zeros_like(u)
    _da_qk, dv = torch.zeros_like(a_qk, dtype=torch.float32), torch.zeros_like(do)
    _dh, dv = _states(k, v), torch.zeros_like(dv)
    dq, dk = torch.zeros_like(q, dtype=torch.float32), torch.zeros_like(k, dtype=torch.float32)
    dv, dg = torch.zeros_like(v), torch.zeros_like(g)
    db, _da_kk = torch.zeros_like(beta, dtype=torch.float32), torch.zeros_like(a_kk, dtype=torch.float32)
    return torch.zeros_like(dq), torch.zeros_like(dk), dv, torch.zeros_like(db), torch.zeros_like(dg)


def chunk_kda(
    query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, **_options: Any
) -> tuple[Tensor, None]:
    """Stand in for chunk_kda; heads are [batch, tokens, heads, width], and so is the decay."""
    return _KimiRule.apply(query, key, value, g, beta), None


class _GatedNorm(torch.autograd.Function):
    """fla modules/fused_norm_gate.py LayerNormGatedFunction."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
        x, gate = x.contiguous(), gate.contiguous()
        ctx.save_for_backward(x, gate, weight, torch.zeros(x.shape[:-1]))
        return torch.zeros_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        x, gate, weight, _ = ctx.saved_tensors
        gradient = gradient.contiguous()
        return torch.zeros_like(x), torch.zeros_like(gate), torch.zeros_like(weight)


class FusedRMSNormGated(torch.nn.Module):
    """Stand in for fla's norm with a gate."""

    def __init__(self, width: int, *, dtype: torch.dtype, **_options: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width, dtype=dtype))

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """Return zeros like `x`, which is [tokens x heads, width]."""
        output: Tensor = _GatedNorm.apply(x, gate, self.weight)
        return output


class _Sizes(NamedTuple):
    """Sizes of a Mamba 2 layer."""

    batch: int
    tokens: int
    heads: int
    head: int
    groups: int
    state: int
    chunk: int

    @property
    def chunks(self) -> int:
        return -(-self.tokens // self.chunk)

    @property
    def states(self) -> tuple[int, ...]:
        return self.batch, self.chunks, self.heads, self.head, self.state

    @property
    def products(self) -> tuple[int, ...]:
        return self.batch, self.chunks, self.groups, self.chunk, self.chunk

    @property
    def splits(self) -> int:
        """Return into how many sums the heads of a group are divided, which keeps the GPU's multiprocessors busy."""
        ratio = self.heads // self.groups
        each = max(min(-(-self.batch * self.chunks * self.heads // MULTIPROCESSORS), ratio), 1)
        return -(-ratio // each)


class _Mamba2(torch.autograd.Function):
    """mamba_ssm ops/triton/ssd_combined.py MambaSplitConv1dScanCombinedFn, without the tensors of one value a head."""

    @staticmethod
    @custom_fwd(device_type="cpu")
    def forward(
        ctx: Any,
        projected: Tensor,
        convolution: Tensor,
        convolution_bias: Tensor | None,
        norm: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        sizes: _Sizes,
    ) -> Tensor:
        ctx.sizes = sizes
        convolved = _convolved(projected, convolution)
        states = torch.zeros(sizes.states)
        states = projected.new_zeros(sizes.states)
        products = torch.zeros(sizes.products)
        scanned = projected.new_zeros(sizes.batch, sizes.tokens, sizes.heads * sizes.head)
        del convolved, states, products
        # The gate is a part of the norm, or of the scan if there is no norm.
        output = torch.zeros_like(scanned)
        rstd = None if norm is None else torch.zeros(sizes.batch * sizes.tokens * sizes.groups)
        if torch.is_autocast_enabled("cpu"):
            kind = torch.get_autocast_dtype("cpu")
            output, weight = output.to(kind), weight.to(kind)
            bias = None if bias is None else bias.to(kind)
        ctx.save_for_backward(projected, convolution, convolution_bias, scanned, norm, rstd, weight, bias)
        return torch.nn.functional.linear(output, weight, bias)

    @staticmethod
    @custom_bwd(device_type="cpu")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        projected, convolution, convolution_bias, scanned, norm, _, weight, bias = ctx.saved_tensors
        output = torch.empty_like(scanned)
        convolved = _convolved(projected, convolution)
        of_projected, of_convolved = torch.zeros_like(projected), torch.empty_like(convolved)
        of_output = torch.nn.functional.linear(gradient, weight.t())
        # Of the norm, or of the gate.
        of_scanned = torch.zeros_like(scanned)
        _scan_backward(ctx.sizes, projected)
        del of_output, of_scanned
        of_weight = torch.einsum("bso,bsd->od", gradient, output)
        _update = torch.zeros_like(of_convolved)
        return (
            of_projected,
            torch.zeros_like(convolution, dtype=torch.float32),
            None if convolution_bias is None else torch.zeros_like(convolution_bias),
            None if norm is None else torch.zeros_like(norm),
            of_weight,
            None if bias is None else gradient.sum(dim=(0, 1)),
            None,
        )


def _convolved(projected: Tensor, convolution: Tensor) -> Tensor:
    return projected.new_zeros(projected.shape[0], convolution.shape[0], projected.shape[1])


def _scan_backward(sizes: _Sizes, projected: Tensor) -> None:
    """Hold what _mamba_chunk_scan_combined_bwd holds, in its order."""
    products = torch.zeros(sizes.products)
    states = torch.zeros(sizes.states)
    states = torch.zeros_like(states)
    of_states = torch.zeros_like(states)
    of_states, states = projected.new_zeros(sizes.states), projected.new_zeros(sizes.states)
    split = (sizes.batch, sizes.tokens, sizes.splits, sizes.groups, sizes.state)
    of_b = torch.zeros(split).sum(2)
    of_c = torch.zeros(split).sum(2)
    of_products = torch.zeros(*sizes.products[:2], sizes.splits, *sizes.products[2:]).sum(2)
    del products, states, of_states, of_b, of_c, of_products


def mamba_split_conv1d_scan_combined(
    projected: Tensor,
    convolution: Tensor,
    convolution_bias: Tensor | None,
    _dt_bias: Tensor,
    _a: Tensor,
    *,
    D: Tensor,
    chunk_size: int,
    headdim: int,
    ngroups: int,
    outproj_weight: Tensor,
    outproj_bias: Tensor | None,
    rmsnorm_weight: Tensor | None = None,
    return_final_states: bool = False,
    **_options: Any,
) -> Any:
    """Stand in for mamba_split_conv1d_scan_combined; `projected` is [batch, tokens, width]."""
    state = (convolution.shape[0] - D.shape[0] * headdim) // ngroups // 2
    sizes = _Sizes(*projected.shape[:2], D.shape[0], headdim, ngroups, state, chunk_size)
    output = _Mamba2.apply(
        projected, convolution, convolution_bias, rmsnorm_weight, outproj_weight, outproj_bias, sizes
    )
    return (output, None) if return_final_states else output


class _Mamba1(torch.autograd.Function):
    """mamba_ssm ops/selective_scan_interface.py SelectiveScanFn and csrc/selective_scan/selective_scan.cpp."""

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor, gate: Tensor, bias: Tensor
    ) -> Tensor:
        u, delta, b, c, gate = (each if each.stride(-1) == 1 else each.contiguous() for each in (u, delta, b, c, gate))
        states = torch.zeros(*u.shape[:2], -(-u.shape[2] // SCAN_CHUNK), 2 * a.shape[1])
        output = torch.zeros_like(delta)
        ctx.save_for_backward(u, delta, a, b, c, d, gate, bias, states, output)
        return torch.zeros_like(gate)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        u, delta, a, b, c, d, gate, bias, _, _ = ctx.saved_tensors
        gradient = gradient if gradient.stride(-1) == 1 else gradient.contiguous()
        of_gate, of_u, of_delta = torch.zeros_like(gate), torch.zeros_like(u), torch.zeros_like(delta)
        of_b, of_c = torch.zeros_like(b, dtype=torch.float32), torch.zeros_like(c, dtype=torch.float32)
        return of_u, of_delta, torch.zeros_like(a), of_b, of_c, torch.zeros_like(d), of_gate, torch.zeros_like(bias)


def selective_scan_fn(
    u: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor, gate: Tensor, bias: Tensor, **_options: Any
) -> tuple[Tensor, None]:
    """Stand in for selective_scan_fn; `u` is [batch, channels, tokens]."""
    return _Mamba1.apply(u, delta, a, b, c, d, gate, bias), None


CAUSAL_CONV1D = SimpleNamespace(causal_conv1d_fn=causal_conv1d_fn, causal_conv1d_update=install)
MAMBA_SSM = SimpleNamespace(
    selective_scan_fn=selective_scan_fn,
    mamba_inner_fn=install,
    selective_state_update=install,
    mamba_chunk_scan_combined=install,
    mamba_split_conv1d_scan_combined=mamba_split_conv1d_scan_combined,
)
"""The libraries, as transformers loads them. It looks for functions of inference too, and does not call them."""
