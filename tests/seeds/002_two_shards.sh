# Of the deployments with tensor parallelism: the target's checkpoint has two parts.
TARGET_TP=--tp_size=2

