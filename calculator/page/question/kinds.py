"""Kinds of questions: whether a setup fits, how many GPUs it needs, how much a technique saves, and so on."""

from __future__ import annotations

import re

from calculator.page.question.spelling import GAP, without

FIT, GPUS, MODELS, COUNT, LENGTH, BATCH = "fit", "gpus", "models", "count", "length", "batch"
"""Kinds of questions: whether a setup fits; which GPU it needs, and how long it trains there; which models fit a GPU;
how many GPUs a setup needs; the longest sequence and the largest batch that fit."""
SAVING, COMPARING = "saving", "comparing"
"""Kinds of questions: how much a technique saves; how much it saves in comparison with another."""

MOST = r"(?:max(?:imum|imal)?|longest|largest|biggest|highest|most)"
WHAT = rf"(?:what(?:'s|{GAP}is)?|which|how{GAP}(?:long|much|big|large|high)|{MOST})"
MANY = rf"(?:how{GAP}many|number{GAP}of|count{GAP}of)"
ONE = rf"(?:{GAP}(?:a|an|the|of|my|possible|usable|safe|best|micro|{MOST}))*{GAP}"
CAN = r"(?:can|could|should|would|do|does|will|may)"
BOUNDS = r"(?<![\w.]){}(?![\w.])"
ASKED: tuple[tuple[str, str], ...] = (
    (
        MODELS,
        rf"(?:which|what|any|list{GAP}of|{MOST}|best){GAP}(?:[a-z]+{GAP}){{0,2}}?(?:models?|llms?)(?!{GAP}size)"
        rf"|how{GAP}(?:big|large){GAP}(?:of{GAP})?(?:an?{GAP})?(?:models?|llms?)"
        rf"|what{GAP}{CAN}{GAP}(?:i|we|you|one|it){GAP}(?:train|(?:fine)?{GAP}tune|run|fit|use|host|load)",
    ),
    (COUNT, rf"{MANY}{GAP}(?:[a-z]+{GAP}){{0,2}}?(?:gpus?|cards?|(?=\0))"),
    (LENGTH, rf"{MANY}{GAP}(?:context{GAP})?tokens?|{WHAT}{ONE}(?:context|seq(?:uence)?|ctx|prompt)s?"),
    (
        BATCH,
        rf"{WHAT}{ONE}(?:micro{GAP})?batch(?:es)?|{MANY}{GAP}(?:samples?|sequences?|images?|users?|requests?)"
        rf"|batch{GAP}sizes?{GAP}(?:for|on|of|do|can|should|will|would|fits?|that)",
    ),
    (
        SAVING,
        rf"sav(?:e|es|ed|ings?)|(?:effect|impact|gain|benefit)s?{GAP}of|with{GAP}(?:and|or|vs|versus){GAP}without"
        rf"|reduc(?:e|es|ed|ing|tion)|helps?|worth|lower(?:s|ed)?|brings?",
    ),
    (COMPARING, r"vs|versus|differences?|compar(?:e|ed|ison)"),
    (
        GPUS,
        rf"(?:which|what|best|cheapest|smallest|recommended){GAP}(?:[a-z]+{GAP}){{0,2}}?(?:gpus?|cards?|hardware)"
        rf"|how{GAP}(?:long|fast)|how{GAP}much{GAP}time|costs?|prices?|expensive|tokens?{GAP}(?:per|a|/){GAP}s(?:ec(?:ond)?)?"
        rf"|duration|speed",
    ),
)
"""Kinds of questions and their patterns, in which NUL is a GPU; the first match counts."""
GENERATE = (
    rf"i?q{GAP}[2-8]_\w+|infer(?:ence|encing|ring)?|(?<!image.)generat(?:e|es|ing|ion)|serv(?:e|es|ing)|vllm|sglang|tgi|ollama|gguf|exl[23]"
    rf"|llama\.?cpp|lm{GAP}studio|exllama\w*|(?:k{GAP}/?{GAP}v|key{GAP}value|past{GAP}key{GAP}values?){GAP}cach(?:e|ing)"
    rf"|kvcache|host(?:ing)?|deploy(?:ing|ment)?|chat(?:ting)?{GAP}with|decod(?:e|ing)"
)
"""Pattern of words for generating text."""
CONTEXT = (
    rf"{WHAT}{ONE}(?:context|ctx|prompt)|{MANY}{GAP}(?:context{GAP})?tokens?|quanti[sz](?:ed|ation)"
    rf"|(?:context|ctx).*[48]{GAP}bits?|[48]{GAP}bits?.*(?:context|ctx)"
)
RUN = rf"run(?:s|ning)?|load(?:s|ing)?|talk(?:ing)?{GAP}to|prompts?"
"""Patterns of words that mean generating text, unless the question has words for training."""
TRAIN = rf"(?:pre)?train(?:s|ing)?|(?:fine)?{GAP}tun(?:e|es|ing)|sft|dpo|rlhf"
TECHNIQUES_OF_TRAINING = (
    rf"{TRAIN}|(?:pre)?trained|(?:fine)?{GAP}tuned|q?lora|peft|adapters?|adamw?|sgd|adafactor|lion|lamb|muon|galore|apollo"
    rf"|optimi[sz]ers?|gradients?|checkpoint\w*|backward|accum\w*|zero|fsdp2?|ddp|deepspeed|epochs?|liger|batch(?:es)?"
)


def asks_to_generate(text: str) -> bool:
    """Returns True if a text is about generating text, not training.

    >>> asks_to_generate("can i run llama 8b?"), asks_to_generate("run a qlora of llama 8b")
    (True, False)
    """
    if _has(GENERATE, text):
        return not _has(TRAIN, text)
    return (_has(RUN, text) or _has(CONTEXT, text)) and not _has(TECHNIQUES_OF_TRAINING, text)


def kind_of(text: str) -> str:
    """The kind of a question.

    Args:
        text: In the spelling of `calculator.page.question.spelling`, with NUL in place of a GPU.
    """
    return next((kind for kind, pattern in ASKED if _has(pattern, text)), FIT)


def without_kind(rest: str, generating: bool) -> str:
    """The rest of a text without the words that say what it asks for."""
    for pattern in (*(pattern for _, pattern in ASKED), *([f"{GENERATE}|{RUN}"] if generating else [])):
        while found := re.search(BOUNDS.format(f"(?:{pattern})"), rest):
            if not found[0]:
                break
            rest = without(rest, found)
    return rest


def _has(pattern: str, text: str) -> bool:
    return re.search(BOUNDS.format(f"(?:{pattern})"), text) is not None
