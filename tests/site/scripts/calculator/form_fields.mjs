// A small form for the tests, with fields of every kind.

const list = (...values) => values.map(([value, text = value]) => ({ value, text }));

export const FIELDS = [
  { name: "model", kind: "search", label: "Model", options: list(["gpt2"], ["dalle"]) },
  { name: "config", kind: "config" },
  { name: "micro_batch_size", kind: "number", usual: "1", placeholder: "1", label: "Micro-batch" },
  { name: "gpu", kind: "choice", label: "GPU to fit", options: list(["", "none"], ["t4", "NVIDIA T4: 16 GB"], ["cuda-gb", "Another card …"]) },
  { name: "optimizer", kind: "choice", usual: "adamw", label: "Optimizer", options: list(["adamw", "AdamW"], ["adamw8bit", "AdamW, 8-bit"], ["sgd", "off"]) },
  { name: "offload_optimizer", kind: "switch", usual: "false", label: "Offload the optimizer" },
  { name: "delta_rule", kind: "switch", usual: "false", label: "Delta rule" },
  { name: "checkpointing", kind: "switch", usual: "false", label: "Gradient checkpointing" },
  { name: "reversible", kind: "choice", label: "Reversible layers", options: list(["", "the model's own"], ["true", "on"], ["false", "off"]) },
];

export const DEFAULTS = {
  model: "gpt2", config: "", micro_batch_size: "1", gpu: "t4", optimizer: "adamw", offload_optimizer: "false", delta_rule: "false",
  checkpointing: "false", reversible: "",
};

const OWN = { dalle: { placeholders: {}, text_to_image: true, reversible: true } };

export const ownOf = ({ model }) => OWN[model] ?? { placeholders: {} };
