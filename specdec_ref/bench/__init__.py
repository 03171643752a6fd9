"""The benchmark: ways of generating (arms) take turns on the same prompts; ratios are reported with intervals."""
