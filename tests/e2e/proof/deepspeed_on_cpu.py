"""DeepSpeed's ZeRO-3 on gloo. Its _allgather_params_coalesced (deepspeed 0.18.4,
runtime/zero/partition_parameters.py) starts a gather for each parameter of a module and waits for the last one alone.
NCCL runs them in order. gloo has several threads, so an earlier gather may end later and overwrite loaded weights."""


def patch():
    from deepspeed import comm

    gather = comm.all_gather_into_tensor

    def all_gather_into_tensor(*arguments, **options):
        handle = gather(*arguments, **options)
        if handle is not None:
            handle.wait()
        return handle

    comm.all_gather_into_tensor = all_gather_into_tensor
