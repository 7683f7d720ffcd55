// The name of a plan, and its recompute setting in words.
import { listed, t } from "../lib/words.js";

const SIZES = [["tensor", "TP"], ["pipeline", "PP"], ["virtual_pipeline", "VPP"], ["context", "CP"], ["expert", "EP"],
  ["expert_tensor", "ETP"]];

// Example: `TP2 PP2 VPP6 DP8`. The engine's name comes first for engines without tensor and pipeline parallelism.
export function planName(row) {
  const isMegatron = row.engine.endsWith("megatron");
  const isSaid = ([key]) => row[key] > 1 || (isMegatron && ["tensor", "pipeline"].includes(key));
  const sizes = SIZES.filter(isSaid).map(([key, short]) => `${short}${row[key]}`);
  const engine = isMegatron ? [] : [t(`wizard.engine.${row.engine}`)];
  return [...engine, ...sizes, `DP${row.data}`].join(" ");
}

// Returns the recompute setting, and the other settings of the plan that differ from the defaults.
export function recompute(row) {
  const isSelective = row.recompute === "selective";
  const kind = isSelective ? row.recompute_modules.join("+") : t(`wizard.recompute.${row.recompute}`);
  const layers = row.recompute_num_layers ? ` ×${row.recompute_num_layers}` : "";
  const megatron = row.engine.endsWith("megatron");
  return listed([kind + layers, megatron && row.tensor > 1 && !row.sequence && t("wizard.plan.no_sequence"),
    megatron && !row.distributed_optimizer && t("wizard.plan.no_sharding"),
    row.pipeline_layout && t("wizard.plan.unequal")]);
}
