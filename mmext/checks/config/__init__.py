"""Read a config, find where its keys are set, and what they should be."""

from .child import (
    DELETE,
    ConfigDraft,
    apply_options,
    is_same,
    write_child_config,
)
from .data_paths import apply_data_root, check_data_paths
from .label_spec import (
    default_of,
    ignored_value,
    read_heads,
    read_ignore_locations,
)
from .locations import config_files, key_location
from .misplaced import (
    FLAG,
    RIGHT_PLACES,
    MisplacedKey,
    RightPlaces,
    RunnerKind,
    check_misplaced_keys,
    find_misplaced_keys,
)
from .read import config_file, read_config, read_config_classes
from .sections import (
    OLD_LOADER_KEYS,
    SECTIONS,
    ConfigNode,
    find_component,
    is_own_key,
    is_used,
    swallows,
    takes,
    unknown_loader_keys,
    walk_nodes,
)
from .source import Variable
from .stored import OF_THE_RUN, config_from_json, config_to_json
from .syntax import BASE, bindings, parse_text, read_values, used_names
from .walk import (
    Steps,
    copy_tree,
    dataset_configs,
    inner_dataset_configs,
    inner_datasets,
    join_key,
    split_key,
    transforms_of,
    walk_datasets,
    walk_dicts,
)

__all__ = [
    'BASE',
    'DELETE',
    'FLAG',
    'OF_THE_RUN',
    'OLD_LOADER_KEYS',
    'RIGHT_PLACES',
    'SECTIONS',
    'ConfigDraft',
    'ConfigNode',
    'MisplacedKey',
    'RightPlaces',
    'RunnerKind',
    'Steps',
    'Variable',
    'apply_data_root',
    'apply_options',
    'bindings',
    'check_data_paths',
    'check_misplaced_keys',
    'config_file',
    'config_files',
    'config_from_json',
    'config_to_json',
    'copy_tree',
    'dataset_configs',
    'default_of',
    'find_component',
    'find_misplaced_keys',
    'ignored_value',
    'inner_dataset_configs',
    'inner_datasets',
    'is_own_key',
    'is_same',
    'is_used',
    'join_key',
    'key_location',
    'parse_text',
    'read_config',
    'read_config_classes',
    'read_heads',
    'read_ignore_locations',
    'read_values',
    'split_key',
    'swallows',
    'takes',
    'transforms_of',
    'unknown_loader_keys',
    'used_names',
    'walk_datasets',
    'walk_dicts',
    'walk_nodes',
    'write_child_config',
]
