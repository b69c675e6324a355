"""Read a config, find where its keys are set, and what they should be."""

from .child import DELETE, apply_options, is_same, write_child_config
from .diff import config_diff
from .draft import ConfigDraft, Variable
from .misplaced_keys import (
    MisplacedKey,
    check_misplaced_keys,
    find_misplaced_keys,
)
from .places import (
    BASE,
    bindings,
    config_files,
    key_place,
    parse_text,
    used_names,
)
from .read import (
    apply_data_root,
    check_data_paths,
    config_file,
    read_config,
    read_config_classes,
)
from .right_places import FLAG, RIGHT_PLACES, RightPlaces, RunnerKind
from .sections import (
    OLD_LOADER_KEYS,
    SECTIONS,
    UNREAD,
    ConfigNode,
    find_component,
    is_own_key,
    is_used,
    swallows,
    takes,
    unknown_loader_keys,
    walk_nodes,
)
from .stored import config_from_json, config_to_json
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
    'OLD_LOADER_KEYS',
    'RIGHT_PLACES',
    'SECTIONS',
    'UNREAD',
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
    'config_diff',
    'config_file',
    'config_files',
    'config_from_json',
    'config_to_json',
    'copy_tree',
    'dataset_configs',
    'find_component',
    'find_misplaced_keys',
    'inner_dataset_configs',
    'inner_datasets',
    'is_own_key',
    'is_same',
    'is_used',
    'join_key',
    'key_place',
    'parse_text',
    'read_config',
    'read_config_classes',
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
