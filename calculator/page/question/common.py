"""Words of questions that say nothing about a setup."""

COMMON = frozenset(
    word
    for line in (
        # articles, pronouns, prepositions, conjunctions
        "a an the this that these those it its it's i i'm i've i'd me my mine we our you your they them their he she",
        "one ones someone anyone anybody somebody everybody everyone which what what's who how why when where whether",
        "in on at to for from of off with within without into onto by via per under over above below between beyond",
        "about around and or but if so as than then like not no yes also too either both each every any some all",
        "other another same such only just even still yet already again almost nearly roughly approximately ca up",
        "down out there here now later ever never always usually normally typically",
        # verbs
        "am is are was were be been being do does did doing done don't doesn't have has had having haven't can can't",
        "cannot could couldn't will won't would wouldn't shall should may might must need needs needed needing want",
        "wants wanted wanna try tries trying tried get gets getting got give gives make makes making made take takes",
        "taking go goes going gonna know say says tell tells show shows see look looks think guess wonder wondering",
        "ask asking help helps let lets work works working use uses used using run runs running fit fits fitting",
        "fitted hold holds handle handles support supports possible impossible feasible realistic enough sufficient",
        "require requires required requiring requirement requirements calculate compute estimate estimated estimating",
        "figure find keep keeps put load loads loading loaded own buy buying bought rent renting rented afford choose",
        "pick recommend recommended suggest start starting started begin stop plan planning consider considering",
        "train trains training trained tune tunes tuning tuned fine finetune finetunes finetuning finetuned pretrain",
        "pretrains pretraining pretrained sft dpo supervised adapt teach",
        # things
        "model models card cards gpu gpus graphics vram memory mem ram machine machines computer pc laptop desktop",
        "server servers node nodes box rig setup setups hardware system device devices cluster cloud amount lot bit",
        "much many more most less least maximum minimum max min total peak overall size sizes number count context",
        "dataset data text texts domain task tasks purpose project question problem issue thing things way ways time",
        "times person people guy guys folks anything something nothing everything thanks thank please pls hello hi",
        "hey sorry ok okay sure really actually exactly maybe perhaps probably approx instead rather very quite",
        "pretty scratch summarization classification translation activation window quantized quantization optimizer",
        "optimizers gradients activations states state best good better great bad big bigger biggest cheap cheaper",
        "cheapest fast faster slow slower old older new newer single local locally home gaming consumer free official",
        "default oom error cuda crash crashes fail fails failing nvidia geforce tesla amd intel base instruct",
        "instruction instructions chat hf huggingface hugging face transformers peft trl pytorch torch trainer",
        "unsloth axolotl bitsandbytes bnb weights parameters params llm llms transformer language v0.3 first next",
        "last vs versus sequence sequences token tokens length long longer longest short shorter shortest different",
        "difference compare compared against regular normal standard usual plain simple actual real theoretical exact",
        "rough fully completely entirely whole gb gib mlm clm causal masked lm",
    )
    for word in line.split()
)
