"""What makes VERL take a CPU for its accelerator, as environment variables of every process that imports it."""

ENVIRONMENT = {
    "VERL_USE_EXTERNAL_MODULES": "verl_cpu.platform",
    "VERL_PLATFORM": "cpu",
    # VERL's registry of engines knows cuda and npu only; the one for cuda asks the platform for everything.
    "VERL_ENGINE_DEVICE": "cuda",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
