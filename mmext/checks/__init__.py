"""Everything that only looks: at configs, at labels, and at a training step.

- :mod:`~mmext.checks.labels`: what is wrong in a data set;
- :mod:`~mmext.checks.preflight`: what is wrong in a config, before a training;
- :mod:`~mmext.checks.ddp`: what DDP does with a training step, and why;
- :mod:`~mmext.checks.config`: read, walk and change configs;
- :mod:`~mmext.checks.findings`: what is found, and reports of it.

They work with any config of MMDetection or MMSegmentation; ``import mmext``
loads none of them.
"""

__all__: list[str] = []
