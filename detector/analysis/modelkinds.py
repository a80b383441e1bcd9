"""What a model's kind (``model_type``) says where its ``config.json`` says nothing.

From the published code of each kind (transformers 5.24, models/*/modeling_*.py, and the
repositories of those that ship their own).
"""

# Activations of feed-forward blocks that have a gate (three products), and that have none,
# where the kind says nothing.
GATED = {"silu", "swish", "swiglu", "geglu"}
PLAIN = {"relu", "relu2", "gelu", "gelu_new", "gelu_fast", "squared_relu", "gelu_python"}

# Kinds of models by the feed-forward block in their published code, whatever the activation.
GATED_KINDS = {
    "bamba", "bitnet", "chatglm", "cohere", "cohere2", "cwm", "deepseek_v2", "deepseek_v3",
    "dots1", "ernie4_5", "exaone4", "falcon_h1", "flex_olmo", "gemma", "gemma2", "gemma3",
    "gemma3_text", "glm", "glm4", "glm4_moe", "glm4_moe_lite", "gpt_oss", "granite",
    "granitemoe", "granitemoehybrid", "granitemoeshared", "helium", "hunyuan_v1_dense",
    "internlm2", "internlm3", "kimi_k2", "llama", "llama4", "llama4_text",
    "minicpm", "minicpm3", "minimax_m2", "ministral", "ministral3", "mistral", "mixtral",
    "olmo", "olmo2", "olmo3", "olmoe", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3",
    "qwen3_moe", "seed_oss", "smollm3", "stablelm", "vaultgemma",
}  # fmt: skip
PLAIN_KINDS = {
    "apertus", "arcee", "biogpt", "bloom", "codegen", "falcon", "gpt2", "gpt_bigcode",
    "gpt_neox", "gptj", "jais2", "nanochat", "nemotron", "nemotron_h", "opt", "persimmon",
    "phi", "RefinedWeb", "RefinedWebModel", "starcoder2",
}  # fmt: skip
# Of those, whose feed-forward size is four times the hidden one where they state none.
FOURFOLD_KINDS = {"bloom", "falcon", "gpt2", "gpt_bigcode", "gptj", "codegen"}
# Whose heads are no equal shares of the hidden size, so that their size must be stated.
OWN_HEADS_KINDS = {
    "gemma", "gemma2", "gemma3", "gemma3_text", "glm4_moe", "gpt_oss", "nemotron_h", "qwen3",
    "qwen3_moe", "vaultgemma",
}  # fmt: skip
# Whose `sliding_window` holds for every layer, and for all but each n-th.
WINDOW_KINDS = {"mistral", "mixtral", "phi3", "phimoe", "starcoder2"}
WINDOW_BUT_KINDS = {
    "cohere2": 4, "gemma2": 2, "gemma3": 6, "gemma3_text": 6, "gpt_oss": 2, "olmo3": 4,
}  # fmt: skip
# Whose window holds only where `use_sliding_window` says so.
WINDOW_IF_SAID_KINDS = {"qwen2", "qwen2_moe", "qwen3", "qwen3_moe"}
# Two directions, a second sequence, or mixers of their own: not counted here.
OTHER_KINDS = {
    "albert", "bart", "bert", "bert-generation", "big_bird", "camembert", "deberta",
    "deberta-v2", "diffllama", "distilbert", "electra", "ernie", "git", "jamba", "jetmoe",
    "mbart", "megatron-bert", "modernbert", "mt5", "nomic_bert", "pegasus", "qwen3_next",
    "roberta", "t5", "umt5", "vit", "whisper", "xlm", "xlm-roberta", "xlm-roberta-xl",
    "xlnet",
}  # fmt: skip
