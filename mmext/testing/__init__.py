"""What tests of other projects can use."""

from .ddp_clean import assert_ddp_clean

__all__ = ['assert_ddp_clean']
