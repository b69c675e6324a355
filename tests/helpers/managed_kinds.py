"""What a Runner registers process-wide."""

from mmengine.utils import ManagerMixin


def managed_kinds() -> list[type]:
    """MMEngine's classes that keep a table of their instances.

    Loggers, message hubs, scopes, and each kind of visualizer: subclasses
    have tables of their own.
    """
    kinds: list[type] = []
    waiting: list[type] = [ManagerMixin]
    while waiting:
        kind = waiting.pop()
        kinds.append(kind)
        waiting.extend(kind.__subclasses__())
    return kinds
