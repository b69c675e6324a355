"""What a preflight says about a config."""

from typing import Any

import msgspec

from ..label_check.findings import Severity

__all__ = ['PreflightFinding', 'Severity']


class PreflightFinding(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True
):
    """One thing that is not in order, or worth knowing.

    Attributes:
        rule: Stable id: letters of the family and three digits, such as
            ``'DDP001'``.
        severity: How bad it is.
        message: One sentence with the facts; names the value and what was
            expected.
        remedy: What to do about it.
        key: Dotted key of the config that it is about, such as
            ``'model.backbone.with_cp'``; empty for none.
        file: File of the config that sets the key, through ``_base_``;
            empty if not known.
        line: In that file, from 1; 0 if not known.
        names: Parameters, modules or labels concerned.
        batches: Kinds of batches with which it was seen; empty for all, or
            where no batch matters.
        options: Smallest change that mends it, as dotted keys and their new
            values; empty if it takes more than a config. A key whose value
            is :data:`DELETE` is to be removed.
    """

    rule: str
    severity: Severity
    message: str
    remedy: str
    key: str = ''
    file: str = ''
    line: int = 0
    names: tuple[str, ...] = ()
    batches: tuple[str, ...] = ()
    options: dict[str, Any] = {}


# Value in `PreflightFinding.options` of a key that is to be removed.
DELETE = '__delete__'
