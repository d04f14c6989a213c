"""Words of techniques and numbers, and the fields of a setup that they set."""

from __future__ import annotations

from calculator.choose.techniques import LORA_RANK
from calculator.page.question.spelling import GAP, NUMBER, SERIES

IS = r"[\s_:=-]*"
"""Pattern between a number's name and the number."""
LORA: dict[str, object] = {"lora_rank": LORA_RANK, "base_bits": 16}
OFF = rf"{IS}(?:off|false|disabled)|\s*[:=]\s*(?:no|none|0)"
"""Pattern after a technique's name that turns it off."""
ACCUMULATED = 8
"""Micro-batches per update where a text does not say how many: an example, which the answer names."""
WORDS: tuple[tuple[str, dict[str, object]], ...] = (
    (rf"paged{GAP}adamw?{GAP}(?:32{GAP}bits?)", {"optimizer": "paged-adamw"}),
    (rf"paged{GAP}adamw?{GAP}8{GAP}bits?", {"optimizer": "paged-adamw8bit"}),
    (rf"galore{GAP}8{GAP}bits?|8{GAP}bits?{GAP}galore", {"optimizer": "galore8bit"}),
    (rf"lion{GAP}8{GAP}bits?|8{GAP}bits?{GAP}lion", {"optimizer": "lion8bit"}),
    (rf"lamb{GAP}8{GAP}bits?|8{GAP}bits?{GAP}lamb", {"optimizer": "lamb8bit"}),
    (rf"adamw?{GAP}8{GAP}bits?|8{GAP}bits?{GAP}(?:adamw?|optimi[sz]er)", {"optimizer": "adamw8bit"}),
    (
        rf"(?:load{GAP}in{GAP})?8{GAP}bits?{GAP}(?:lora|base|model|weights)|load{GAP}in{GAP}8{GAP}bits?"
        rf"|(?:lora|base|model|weights){GAP}(?:in{GAP})?8{GAP}bits?(?:{GAP}base)?",
        {"lora_rank": LORA_RANK, "base_bits": 8},
    ),
    (rf"load{GAP}in{GAP}4{GAP}bits?|base{GAP}bits?{GAP}4", {"lora_rank": LORA_RANK, "base_bits": 4}),
    (rf"q{GAP}lora", {"lora_rank": LORA_RANK, "base_bits": 4}),
    (rf"4{GAP}bits?|nf4|int4", {"base_bits": 4}),
    (r"lora|adapters?|peft", LORA),
    (
        rf"(?:optimi[sz]er|updates?|step){GAP}in{GAP}(?:the{GAP})?(?:backward|bwd)(?:{GAP}pass)?"
        rf"|fused{GAP}(?:backward|bwd)(?:{GAP}pass)?|layer{GAP}wise(?:{GAP}(?:updates?|optimi[sz]er))?",
        {"optimizer_in_backward": True},
    ),
    (rf"(?:adamw?{GAP})?8{GAP}bits?(?:{GAP}(?:adamw?|optimi[sz]er))?|adamw8bit", {"optimizer": "adamw8bit"}),
    (r"adafactor", {"optimizer": "adafactor"}),
    (r"galore", {"optimizer": "galore"}),
    (rf"apollo{GAP}mini", {"optimizer": "apollo-mini"}),
    (r"apollo", {"optimizer": "apollo"}),
    (r"lion", {"optimizer": "lion"}),
    (r"lamb", {"optimizer": "lamb"}),
    (r"muon", {"optimizer": "muon"}),
    (r"sgd", {"optimizer": "sgd"}),
    (r"adamw?", {"optimizer": "adamw"}),
    (
        rf"(?:no|without|disabled?){GAP}(?:gradient{GAP})?checkpoint(?:ing|s)?"
        rf"|(?:gradient{GAP})?checkpoint(?:ing|s)?(?:{OFF})",
        {"checkpointing": False},
    ),
    (rf"(?:gradient{GAP})?checkpoint(?:ing|s)?|recomput(?:e|ing|ation)", {"checkpointing": True}),
    (
        rf"(?:use{GAP})?liger(?:{GAP}kernels?)?(?:{GAP}loss)?|fused{GAP}(?:linear{GAP})?(?:cross{GAP}entropy|loss)"
        rf"|(?:cross{GAP}entropy|loss){GAP}in{GAP}(?:pieces|chunks)|chunked{GAP}(?:cross{GAP}entropy|loss)",
        {"loss": "liger"},
    ),
    (rf"(?:torchao{GAP})?(?:fp|float){GAP}?8(?:{GAP}training)?", {"fp8": True}),
    (rf"(?:sequence{GAP})?pack(?:ing|ed|s)(?:{GAP}(?:samples?|sequences?))?", {"packed": True}),
    (
        rf"activations?{GAP}(?:offload(?:ed|ing)?|on{GAP}the{GAP}host)|offload(?:ed|ing)?{GAP}activations?",
        {"offload_activations": True, "checkpointing": False},
    ),
    (rf"(?:grad(?:ient)?s?{GAP})?accumulat(?:e|ed|ing|ion)", {"accumulation_steps": ACCUMULATED}),
    (rf"(?:cpu{GAP})?offload(?:ed|ing)?", {"offload_optimizer": True}),
    (rf"flash{GAP}attention|flash|sdpa", {"attention": "sdpa"}),
    (r"eager", {"attention": "eager"}),
    (rf"(?:pure|full|whole){GAP}(?:bf16|bfloat16)", {"precision": "bf16"}),
    (rf"(?:pure|full|whole){GAP}(?:fp16|float16)", {"precision": "fp16"}),
    (
        rf"full(?:{GAP}(?:fine{GAP}tun(?:e|ed|ing)|ft|sft|train(?:ing)?|param(?:eter)?s?|weights?|model))*"
        rf"(?!{GAP}(?:precision|context|length|seq|attention|shard))",
        {"all_weights": True},
    ),
    (rf"deep{GAP}speed{GAP}(?:zero)?{IS}(?:stage{IS})?1", {"sharding": "deepspeed-1"}),
    (rf"deep{GAP}speed{GAP}(?:zero)?{IS}(?:stage{IS})?2", {"sharding": "deepspeed-2"}),
    (rf"deep{GAP}speed{GAP}(?:zero)?{IS}(?:stage{IS})?3", {"sharding": "deepspeed-3"}),
    (rf"(?:fsdp2?|ddp)?{GAP}zero{IS}(?:stage{IS})?1", {"sharding": "zero-1"}),
    (rf"(?:fsdp2?)?{GAP}zero{IS}(?:stage{IS})?2", {"sharding": "zero-2"}),
    (rf"(?:fsdp2?)?{GAP}zero{IS}(?:stage{IS})?3|fsdp2?", {"sharding": "zero-3"}),
    (rf"tensor{GAP}parallel(?:ism)?", {"sharding": "tensor", "precision": "bf16"}),
    (r"bf16|bfloat16", {"precision": "amp-bf16"}),
    (r"fp16|float16", {"precision": "amp-fp16"}),
    (rf"fp32|float32|full{GAP}precision", {"precision": "fp32"}),
)
"""Patterns and the fields that they set; the first match wins. `all_weights` is not a field: it only excludes LoRA."""
NOT_OF_A_TEXT = rf"(?!{GAP}(?:training{GAP})?(?:samples?|examples?|rows?|steps?|images?|documents?|pairs?))"
"""Pattern that excludes the size of a data set."""
NUMBERS = (
    ("lora_rank", rf"(?:lora_)?(?:rank{IS}|(?<!-)r{GAP}(?:[:=]{GAP}|(?!1(?!\d)))){NUMBER}(?![\w.])"),
    ("gpus", rf"(?:n_|num_)?gpus?\s*[:=]\s*{NUMBER}(?![\w.])"),
    ("gpus", rf"{NUMBER}{GAP}gpus?(?![\w.])(?!{IS}\d{{1,2}}(?!\w|{GAP}(?:bits?|samples?|sequences?|tokens?)))"),
    ("gpus", rf"{NUMBER}{GAP}cards?(?!\w)"),
    ("gpus", rf"{NUMBER}{GAP}x(?![\w.])(?!{GAP}\d+(?!\w))"),
    (
        "accumulation_steps",
        rf"(?:grad(?:ient)?s?{GAP})?accum(?:ulat(?:e|ed|ion))?(?:{GAP}(?:steps?|of|over))*{IS}{NUMBER}(?![\w.])",
    ),
    ("", rf"(?:effective|global|total){GAP}batch(?:{GAP}(?:size|of))*{IS}{NUMBER}(k?)(?![\w.])"),
    ("micro_batch_size", rf"(?:bs|(?:micro{GAP})?batch(?:es)?(?:{GAP}size)?)(?:{GAP}of)?{IS}{NUMBER}(k?)(?![\w.])"),
    (
        "micro_batch_size",
        rf"(\d{{1,3}}){GAP}(?:(?:concurrent|parallel|simultaneous){GAP})?(?:samples?|sequences?|users?|requests?)(?!\w)",
    ),
    ("image_size", rf"{NUMBER}{GAP}(?:x{GAP}\d+{GAP})?(?:px|pixels?)(?!\w)"),
    ("image_size", rf"{NUMBER}{GAP}x{GAP}(?!{SERIES}(?!\w))\d+(?!\w)"),
    ("image_size", rf"(?:image|picture|resolution)s?(?:{GAP}size)?(?:{GAP}of)?{IS}{NUMBER}(?![\w.])"),
    ("target_length", rf"(?:target|decoder)(?:{GAP}(?:len(?:gth)?|tokens?))*(?:{GAP}of)?{IS}{NUMBER}(?![\w.])"),
    ("sequence_length", rf"{NUMBER}(k?){GAP}(?:tokens?|toks?|context|ctx|seq(?:uence)?(?:{GAP}len(?:gth)?)?)(?!\w)"),
    (
        "sequence_length",
        rf"(?:max{GAP})?(?:length|context|ctx|seq(?:uence)?)(?:{GAP}(?:len(?:gth)?|window|size))?(?:{GAP}of)?{IS}"
        rf"{NUMBER}(k?)(?![\w.])",
    ),
    ("sequence_length", rf"(\d{{1,4}})(k)(?![\w.]){NOT_OF_A_TEXT}"),
    ("sequence_length", r"at\s+(\d{3,7})(?![\w.])"),
)
"""Fields and the patterns of their numbers, which may end in k for 1024; "" is the global batch, not a field."""
TOKENS = rf"(?<![\w.])(\d{{1,6}}(?:\.\d+)?){GAP}(m|b|t|millions?|billions?|trillions?|bn){GAP}(?:of{GAP})?tokens?(?!\w)"
"""Pattern of the tokens to train on; letters may stand for millions, billions and trillions."""
BILLIONS = {"m": 0.001, "b": 1, "t": 1000}
PRICE = (
    r"[$€£]?\s*(?<![\w.])(\d{1,5}(?:\.\d+)?)\s*[$€£]?\s*(?:usd|eur|dollars?|euros?)?"
    r"\s*(?:/|per|an|a)\s*(?:gpu[\s-]*)?h(?:r|our)?(?!\w)"
)
"""Pattern of the price of a GPU for an hour."""
STORED = (
    (r"mxfp4", "mxfp4"),
    (rf"(?:iq|q){GAP}[2-4](?:_\w+)?|[2-4](?:\.\d+)?{GAP}(?:bits?|bpw)|nf4|int4|fp4|awq|gptq|bnb|gguf", "nf4"),
    (rf"q{GAP}[5-8](?:_\w+)?|[5-8](?:\.\d+)?{GAP}(?:bits?|bpw)|int8|fp8|float8", "fp8"),
    (r"fp32|float32|32bits?", "fp32"),
    (rf"(?:in{GAP})?(?:fp16|bf16|float16|bfloat16|half|16{GAP}bits?)(?:{GAP}precision)?", "bf16"),
)
"""Types of weights that are generated with; those of other bits count as the next larger type."""
_CACHE = rf"(?:kv|k{GAP}/?{GAP}v){GAP}(?:cache)?"
_CACHE_BITS = rf"(?:fp8|q8(?:_0)?|int8|8{GAP}bits?)"
CACHES = ((rf"{_CACHE_BITS}{GAP}{_CACHE}|{_CACHE}{GAP}(?:in{GAP})?{_CACHE_BITS}", "fp8"),)
"""Types of cached keys and values."""
NUMBERED = (
    r"\w*(?:epochs?|steps?|stage|alpha|seed|layers?|heads?|workers|top|lr|days?|hours?|samples?|int|cuda|torch|python)"
)
"""Pattern of words that a number follows and that set no field."""
COUNT = rf"(?:(?<!\d )(?<![\w.])({NUMBERED}){IS})?(?<![\w.-])(\d{{1,2}})\s*(?:(?:nvidia|geforce|tesla|amd)\s+)*\0"
"""Pattern of a number before a GPU, whose name is replaced by NUL; a word before the number may claim it."""
