"""Backbones of the package transformers, such as DINOv2 and DINOv3."""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec

from torch import Tensor, nn

from ..registry import MODELS
from .mae.layers import PlainViT, patch_grid, to_pair


@MODELS.register_module()
class HFBackbone(PlainViT):
    """What ``AutoBackbone`` of transformers makes, as a backbone of a host.

    Names in the state dict are those of transformers, below ``model.``; its
    versions differ in them, and names of another one are refused. The token of
    masked patches, and layers behind the last map, are never trained: nothing
    reads them.

    Args:
        config: ``model_type``, such as ``'dinov2'`` or ``'dinov3_vit'``, with
            what differs from its default. Or a name on the hub, or a folder,
            whose ``config.json`` is read when the backbone is built; its
            weights are loaded, too, where ``init_cfg`` names none.
        out_indices: Stages whose maps are given, from 0, which is what comes
            before the first layer; by default the last one.
        frozen_stages: Number of leading layers that get no gradients and stay
            in evaluation, as does what is before them; if all are frozen, all
            of the backbone. 0 freezes only what is before, -1 nothing.
        init_cfg: ``dict(type='Pretrained', checkpoint=...)`` with a name on
            the hub or a folder; without one, weights are random.

    Raises:
        ImportError: If transformers is not there.
        ValueError: If an argument is out of range, or transformers knows no
            such backbone.

    Source:
        transformers, ``AutoBackbone``. DINOv2, arXiv 2304.07193; DINOv3,
        arXiv 2508.10104.
    """

    def __init__(
        self,
        config: str | Mapping,
        out_indices: Sequence[int] | None = None,
        frozen_stages: int = -1,
        init_cfg: dict | None = None,
    ) -> None:
        if find_spec('transformers') is None:
            raise ImportError(
                'transformers is not installed; run: '
                "pip install 'mmext[transformers]'"
            )
        from transformers import AutoBackbone, AutoConfig

        if isinstance(config, str):
            init_cfg = init_cfg or {'type': 'Pretrained', 'checkpoint': config}
            config = AutoConfig.from_pretrained(config)
        elif 'model_type' not in config:
            raise ValueError(
                'config must be a name, a folder, or a dict with model_type, '
                f'got {config!r}'
            )
        else:
            default = AutoConfig.for_model(config['model_type'])
            # They would be kept, and read by nobody.
            unknown = [key for key in config if not hasattr(default, key)]
            if unknown:
                raise ValueError(
                    f'config must have keys of {type(default).__name__}, got '
                    f'{unknown}'
                )
            config = AutoConfig.for_model(**config)
        if init_cfg and init_cfg.get('type') != 'Pretrained':
            raise ValueError(
                f'init_cfg must be of type Pretrained, got {init_cfg!r}'
            )
        super().__init__(init_cfg)
        if out_indices is not None:
            config.out_indices = list(out_indices)
        side = getattr(config, 'patch_size', 1)
        self.patch_size = to_pair(side, 'patch_size')
        # A config of half precision gives such weights.
        self.model = AutoBackbone.from_config(config).float()
        count = len(self.model.stage_names) - 1
        if not -1 <= frozen_stages <= count:
            raise ValueError(
                f'frozen_stages must be in [-1, {count}], got {frozen_stages}'
            )
        layers = [
            f'{name}.'
            for name, part in self.model.named_modules()
            if isinstance(part, nn.ModuleList) and len(part) == count
        ]
        if not layers:
            raise ValueError(
                f'config must be of a backbone with a list of {count} stages, '
                f'got {config.model_type!r}'
            )
        self.frozen_stages, self._layers = frozen_stages, layers[0]
        # 0 before the layers, 1 in the first one, the largest behind all.
        self._num_depths, self._depths, depth = count + 2, {}, 0
        last = max(self.model.out_indices)
        for name, param in self.model.named_parameters():
            if name.startswith(self._layers):
                index = name.removeprefix(self._layers).split('.')[0]
                depth = 1 + int(index)
            elif depth:
                depth = count + 1
            self._depths[name] = depth
            param.requires_grad_(
                frozen_stages < min(depth, count)
                and not last < depth <= count
                and not name.endswith('mask_token')
            )
        self._register_load_state_dict_pre_hook(self._check_names)

    def _check_names(self, state_dict: dict, prefix: str, *_: object) -> None:
        """Refuse names of another version, which would be left out."""
        own = {f'{prefix}model.{name}' for name in self.model.state_dict()}
        other = [
            key
            for key in state_dict
            if key.startswith(f'{prefix}model.') and key not in own
        ]
        if other:
            raise ValueError(
                f'weights of {type(self.model).__name__} must have the names '
                f'of transformers {version("transformers")}, got {other[:3]}; '
                'install the version that they were written with'
            )

    def init_weights(self) -> None:
        """Load what ``init_cfg`` names; else weights stay as constructed.

        Raises:
            ValueError: If weights are missing there.
        """
        if self.init_cfg:
            checkpoint = self.init_cfg['checkpoint']
            # AutoBackbone would ask the hub for what is a folder.
            loaded, info = type(self.model).from_pretrained(
                checkpoint, config=self.model.config, output_loading_info=True
            )
            if info['missing_keys']:
                raise ValueError(
                    f'checkpoint of init_cfg must hold all weights of '
                    f'{type(loaded).__name__}, got {checkpoint} without '
                    f'{sorted(info["missing_keys"])[:3]}'
                )
            self.model.load_state_dict(loaded.state_dict())
        self._is_init = True

    def _frozen_modules(self) -> list[nn.Module]:
        frozen, before = [], self.frozen_stages >= 0
        for name, part in self.model.named_modules():
            before = before and not name.startswith(self._layers)
            learned = [param.requires_grad for param in part.parameters()]
            # Positions that are moved in training have no parameters.
            if not any(learned) and (learned or before):
                frozen.append(part)
        return frozen

    def get_layer_depth(
        self, param_name: str, prefix: str = ''
    ) -> tuple[int, int]:
        """As in the base class."""
        depths = self._num_depths
        name = param_name.removeprefix(f'{prefix}model.')
        return self._depths.get(name, depths - 1), depths

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Encode pictures, ``(N, in_channels, height, width)``.

        Returns:
            A map ``(N, C, H, W)`` of each of ``out_indices``; of a Vision
            Transformer with a stride of its patches' side.

        Raises:
            ValueError: If a side is no multiple of that of a patch.
        """
        patch_grid(images.shape[-2:], self.patch_size, 'images')
        return tuple(self.model(images).feature_maps)
