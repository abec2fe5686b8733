"""Architectures as torch modules, which no installed package builds from a configuration."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


def conv_bn(
    inputs: int,
    outputs: int,
    kernel: int | tuple[int, int] = 3,
    stride: int = 1,
    groups: int = 1,
    *,
    valid: bool = False,
) -> nn.Module:
    """Makes a block of convolution, batch norm and ReLU.

    Args:
        inputs: input channels.
        outputs: output channels.
        kernel: side of the kernel, or (height, width).
        stride: stride in both directions.
        groups: groups of channels.
        valid: no padding; otherwise stride 1 keeps the size.

    Returns:
        The block.
    """
    height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
    padding = (0, 0) if valid else (height // 2, width // 2)
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, (height, width), stride, padding, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


class Branches(nn.Module):
    """Parallel branches on one input, concatenated over channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class InceptionV3(nn.Module):
    """Inception-V3 (Szegedy et al., 2016, arXiv:1512.00567) without the auxiliary head. width scales all channels."""

    def __init__(self, width: float = 1.0, classes: int = 1000) -> None:
        super().__init__()

        def c(channels: int) -> int:
            return max(8, int(channels * width))

        def block_a(i: int, pooled: int) -> nn.Module:
            return Branches(
                conv_bn(i, c(64), 1),
                nn.Sequential(conv_bn(i, c(48), 1), conv_bn(c(48), c(64), 5)),
                nn.Sequential(conv_bn(i, c(64), 1), conv_bn(c(64), c(96)), conv_bn(c(96), c(96))),
                nn.Sequential(nn.AvgPool2d(3, 1, 1), conv_bn(i, pooled, 1)),
            )

        def block_c(i: int, m: int) -> nn.Module:
            return Branches(
                conv_bn(i, c(192), 1),
                nn.Sequential(conv_bn(i, m, 1), conv_bn(m, m, (1, 7)), conv_bn(m, c(192), (7, 1))),
                nn.Sequential(
                    conv_bn(i, m, 1),
                    conv_bn(m, m, (7, 1)),
                    conv_bn(m, m, (1, 7)),
                    conv_bn(m, m, (7, 1)),
                    conv_bn(m, c(192), (1, 7)),
                ),
                nn.Sequential(nn.AvgPool2d(3, 1, 1), conv_bn(i, c(192), 1)),
            )

        def block_e(i: int) -> nn.Module:
            def fork(j: int) -> nn.Module:
                return Branches(conv_bn(j, c(384), (1, 3)), conv_bn(j, c(384), (3, 1)))

            return Branches(
                conv_bn(i, c(320), 1),
                nn.Sequential(conv_bn(i, c(384), 1), fork(c(384))),
                nn.Sequential(conv_bn(i, c(448), 1), conv_bn(c(448), c(384)), fork(c(384))),
                nn.Sequential(nn.AvgPool2d(3, 1, 1), conv_bn(i, c(192), 1)),
            )

        a = 2 * c(64) + c(96)
        b = a + c(64)
        d = b + c(384) + c(96)
        f = c(320) + 4 * c(384) + c(192)
        mixed = 4 * c(192)
        self.stem = nn.Sequential(
            conv_bn(3, c(32), 3, 2, valid=True), conv_bn(c(32), c(32), valid=True), conv_bn(c(32), c(64)),
            nn.MaxPool2d(3, 2), conv_bn(c(64), c(80), 1), conv_bn(c(80), c(192), valid=True), nn.MaxPool2d(3, 2),
        )  # fmt: skip
        self.body = nn.Sequential(
            block_a(c(192), c(32)),
            block_a(a + c(32), c(64)),
            block_a(b, c(64)),
            Branches(
                conv_bn(b, c(384), 3, 2, valid=True),
                nn.Sequential(conv_bn(b, c(64), 1), conv_bn(c(64), c(96)), conv_bn(c(96), c(96), 3, 2, valid=True)),
                nn.MaxPool2d(3, 2),
            ),
            block_c(d, c(128)),
            block_c(mixed, c(160)),
            block_c(mixed, c(160)),
            block_c(mixed, c(192)),
        )
        self.reduce = Branches(
            nn.Sequential(conv_bn(mixed, c(192), 1), conv_bn(c(192), c(320), 3, 2, valid=True)),
            nn.Sequential(
                conv_bn(mixed, c(192), 1),
                conv_bn(c(192), c(192), (1, 7)),
                conv_bn(c(192), c(192), (7, 1)),
                conv_bn(c(192), c(192), 3, 2, valid=True),
            ),
            nn.MaxPool2d(3, 2),
        )
        self.tail = nn.Sequential(block_e(mixed + c(320) + c(192)), block_e(f))
        self.head = nn.Linear(f, classes)

    def forward(self, image: Tensor) -> Tensor:
        x = self.tail(self.reduce(self.body(self.stem(image))))
        return self.head(x.mean((2, 3)))


class UNet(nn.Module):
    """U-Net (Ronneberger et al., 2015): contracting and expanding path with long skips."""

    def __init__(self, width: int = 16, depth: int = 3, classes: int = 4) -> None:
        """Makes the network.

        Args:
            width: channels at full resolution; they double at each level.
            depth: number of times that the resolution is halved.
            classes: output channels.
        """
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        self.first = nn.Sequential(conv_bn(3, width), conv_bn(width, width))
        self.down = nn.ModuleList(
            nn.Sequential(nn.MaxPool2d(2), conv_bn(a, b), conv_bn(b, b)) for a, b in pairwise(widths)
        )
        pairs = list(pairwise(widths))[::-1]
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairs)
        self.merge = nn.ModuleList(nn.Sequential(conv_bn(2 * a, a), conv_bn(a, a)) for a, _ in pairs)
        self.last = nn.Conv2d(width, classes, 1)

    def forward(self, image: Tensor) -> Tensor:
        skips = [self.first(image)]
        for down in self.down:
            skips.append(down(skips[-1]))
        x = skips.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([skips.pop(), up(x)], 1))
        return self.last(x)


class DiffusionUNet(nn.Module):
    """Denoising U-Net: residual blocks with group norm, a time embedding, self-attention at the bottom."""

    def __init__(self, width: int = 32, channels: int = 4) -> None:
        super().__init__()
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, 4 * width))
        self.first = nn.Conv2d(channels, width, 3, padding=1)
        pairs = ((width, width), (width, 2 * width), (2 * width, 2 * width))
        self.enter = nn.ModuleList(TimedBlock(a, b, 4 * width) for a, b in pairs)
        self.shrink = nn.ModuleList([nn.Conv2d(width, width, 3, 2, 1), nn.Conv2d(2 * width, 2 * width, 3, 2, 1)])
        self.attend = nn.MultiheadAttention(2 * width, 4, batch_first=True)
        self.middle = TimedBlock(2 * width, 2 * width, 4 * width)
        pairs = ((4 * width, 2 * width), (4 * width, width), (2 * width, width))
        self.leave = nn.ModuleList(TimedBlock(a, b, 4 * width) for a, b in pairs)
        self.last = nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, channels, 3, padding=1))

    def forward(self, sample: Tensor, timestep: Tensor) -> Tensor:
        half = self.width // 2
        frequencies = torch.exp(torch.arange(half) * (-9.2 / half))
        angles = timestep.float()[:, None] * frequencies[None]
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        x = self.first(sample)
        skips = []
        for level, block in enumerate(self.enter):
            x = block(x, time)
            skips.append(x)
            if level < 2:
                x = self.shrink[level](x)
        flat = x.flatten(2).transpose(1, 2)
        attended, _ = self.attend(flat, flat, flat, need_weights=False)
        x = self.middle(x + attended.transpose(1, 2).reshape(x.shape), time)
        for level, block in enumerate(self.leave):
            if level:
                x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat([x, skips.pop()], 1), time)
        return self.last(x)


class TimedBlock(nn.Module):
    """Residual block with activations shifted by a time embedding."""

    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        """Makes the block.

        Args:
            inputs: input channels.
            outputs: output channels.
            time: width of the time embedding.
        """
        super().__init__()
        self.enter = nn.Sequential(nn.GroupNorm(8, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1))
        self.shift = nn.Linear(time, outputs)
        self.leave = nn.Sequential(nn.GroupNorm(8, outputs), nn.SiLU(), nn.Conv2d(outputs, outputs, 3, padding=1))
        self.skip = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        hidden = self.enter(x) + self.shift(functional.silu(time))[:, :, None, None]
        return self.skip(x) + self.leave(hidden)


class VAEDecoder(nn.Module):
    """Decoder of a latent-diffusion autoencoder: residual blocks and nearest upsampling."""

    def __init__(self, width: int = 32, latent: int = 4) -> None:
        super().__init__()

        def block(channels: int) -> nn.Module:
            return nn.Sequential(
                nn.GroupNorm(8, channels), nn.SiLU(), nn.Conv2d(channels, channels, 3, padding=1),
                nn.GroupNorm(8, channels), nn.SiLU(), nn.Conv2d(channels, channels, 3, padding=1),
            )  # fmt: skip

        self.first = nn.Conv2d(latent, 2 * width, 3, padding=1)
        self.blocks = nn.ModuleList([block(2 * width), block(2 * width), block(width)])
        self.between = nn.ModuleList(
            [nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.Conv2d(2 * width, width, 3, padding=1)]
        )
        self.last = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, latent: Tensor) -> Tensor:
        x = self.first(latent)
        for level, block in enumerate(self.blocks):
            x = x + block(x)
            if level < 2:
                x = self.between[level](functional.interpolate(x, scale_factor=2.0, mode="nearest"))
        return torch.tanh(self.last(x))


class DeepLab(nn.Module):
    """DeepLab-V3 head (atrous spatial pyramid pooling) on a small dilated backbone (Chen et al., 2017)."""

    def __init__(self, width: int = 32, classes: int = 8) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            conv_bn(3, width, 3, 2), conv_bn(width, width, 3, 2), conv_bn(width, 2 * width, 3, 2)
        )
        self.rates = nn.ModuleList(
            nn.Sequential(nn.Conv2d(2 * width, width, 3, padding=rate, dilation=rate), nn.BatchNorm2d(width), nn.ReLU())
            for rate in (1, 2, 4)
        )
        self.pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(2 * width, width, 1), nn.ReLU())
        self.project = conv_bn(4 * width, width, 1)
        self.classify = nn.Conv2d(width, classes, 1)

    def forward(self, image: Tensor) -> Tensor:
        features = self.backbone(image)
        pooled = functional.interpolate(self.pooled(features), features.shape[2:], mode="bilinear", align_corners=False)
        x = self.project(torch.cat([rate(features) for rate in self.rates] + [pooled], 1))
        return functional.interpolate(self.classify(x), image.shape[2:], mode="bilinear", align_corners=False)


class PyramidDetector(nn.Module):
    """RetinaNet-like: feature pyramid, shared class and box heads on three levels, five outputs a cell."""

    def __init__(self, width: int = 24, classes: int = 5) -> None:
        super().__init__()
        self.stages = nn.ModuleList([
            nn.Sequential(conv_bn(3, width, 3, 2), conv_bn(width, width, 3, 2)),
            nn.Sequential(conv_bn(width, 2 * width, 3, 2), conv_bn(2 * width, 2 * width)),
            nn.Sequential(conv_bn(2 * width, 4 * width, 3, 2), conv_bn(4 * width, 4 * width)),
        ])  # fmt: skip
        self.lateral = nn.ModuleList(nn.Conv2d(width << level, width, 1) for level in range(3))
        self.classes = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, classes, 1))
        self.boxes = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 4, 1))

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        levels, x = [], image
        for stage in self.stages:
            x = stage(x)
            levels.append(x)
        merged = self.lateral[2](levels[2])
        pyramid = [merged]
        for level in (1, 0):
            merged = self.lateral[level](levels[level]) + functional.interpolate(
                merged, scale_factor=2.0, mode="nearest"
            )
            pyramid.append(merged)
        scores = torch.cat([self.classes(level).flatten(2) for level in pyramid], 2)
        boxes = torch.cat([self.boxes(level).flatten(2) for level in pyramid], 2)
        return scores.sigmoid(), boxes


class YoloLike(nn.Module):
    """CSP backbone with SiLU, spatial pyramid pooling, and grids decoded to boxes, after the YOLO family."""

    def __init__(self, width: int = 16, classes: int = 6) -> None:
        super().__init__()
        self.classes = classes
        self.stem = SiluConv(3, width, 3, 2)
        self.stage1 = nn.Sequential(SiluConv(width, 2 * width, 3, 2), CrossStage(2 * width))
        self.stage2 = nn.Sequential(SiluConv(2 * width, 4 * width, 3, 2), CrossStage(4 * width))
        self.stage3 = nn.Sequential(SiluConv(4 * width, 8 * width, 3, 2), CrossStage(8 * width))
        self.reduce = SiluConv(8 * width, 4 * width, 1)
        self.pools = nn.ModuleList(nn.MaxPool2d(size, 1, size // 2) for size in (5, 9, 13))
        self.join = SiluConv(16 * width, 4 * width, 1)
        self.merge = CrossStage(8 * width)
        self.heads = nn.ModuleList([nn.Conv2d(8 * width, 5 + classes, 1), nn.Conv2d(4 * width, 5 + classes, 1)])

    def forward(self, image: Tensor) -> Tensor:
        fine = self.stage2(self.stage1(self.stem(image)))
        coarse = self.reduce(self.stage3(fine))
        coarse = self.join(torch.cat([coarse] + [pool(coarse) for pool in self.pools], 1))
        merged = self.merge(torch.cat([fine, functional.interpolate(coarse, scale_factor=2.0, mode="nearest")], 1))
        boxes = []
        for head, features in zip(self.heads, (merged, coarse), strict=True):
            raw = head(features)
            height, width = raw.shape[2], raw.shape[3]
            rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
            grid = torch.stack([columns, rows]).float()[None]
            xy, wh, rest = raw.split([2, 2, 1 + self.classes], 1)
            decoded = torch.cat([(xy.sigmoid() + grid) / width, wh.tanh().exp(), rest.sigmoid()], 1)
            boxes.append(decoded.flatten(2).transpose(1, 2))
        return torch.cat(boxes, 1)


class SiluConv(nn.Module):
    """Convolution, batch norm and SiLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        """Makes the block.

        Args:
            inputs: input channels.
            outputs: output channels.
            kernel: side of the kernel.
            stride: stride in both directions.
        """
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return functional.silu(self.norm(self.conv(x)))


class CrossStage(nn.Module):
    """Cross-stage partial block: half of the channels pass through two residual bottlenecks."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.left, self.right = SiluConv(width, half, 1), SiluConv(width, half, 1)
        self.bottlenecks = nn.ModuleList(
            nn.Sequential(SiluConv(half, half, 1), SiluConv(half, half, 3)) for _ in range(2)
        )
        self.join = SiluConv(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        left = self.left(x)
        for bottleneck in self.bottlenecks:
            left = left + bottleneck(left)
        return self.join(torch.cat([left, self.right(x)], 1))


class ResNeXt(nn.Module):
    """Grouped residual blocks (Xie et al., 2017), with squeeze-and-excitation if asked (Hu et al., 2018)."""

    def __init__(
        self, width: int = 32, blocks: int = 3, groups: int = 8, squeeze: bool = False, classes: int = 10
    ) -> None:
        """Makes the network.

        Args:
            width: channels of all blocks.
            blocks: number of blocks.
            groups: groups of channels in the grouped convolutions.
            squeeze: add squeeze-and-excitation.
            classes: number of outputs.
        """
        super().__init__()
        self.stem = conv_bn(3, width, 3, 2)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                conv_bn(width, width, 1), conv_bn(width, width, 3, groups=groups),
                nn.Conv2d(width, width, 1, bias=False), nn.BatchNorm2d(width),
            )
            for _ in range(blocks)
        )  # fmt: skip
        self.gates = nn.ModuleList(
            nn.Sequential(
                nn.AdaptiveAvgPool2d(1),
                nn.Conv2d(width, width // 4, 1),
                nn.ReLU(),
                nn.Conv2d(width // 4, width, 1),
                nn.Sigmoid(),
            )
            for _ in range(blocks if squeeze else 0)
        )
        self.head = nn.Linear(width, classes)

    def forward(self, image: Tensor) -> Tensor:
        x = self.stem(image)
        for index, block in enumerate(self.blocks):
            change = block(x)
            if len(self.gates):
                change = change * self.gates[index](change)
            x = torch.relu(x + change)
        return self.head(x.mean((2, 3)))


class Ghost(nn.Module):
    """GhostNet-like: half of each feature map comes from cheap depthwise convolutions (Han et al., 2020)."""

    def __init__(self, width: int = 16, classes: int = 10) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width]
        self.stem = conv_bn(3, width, 3, 2)
        self.primary = nn.ModuleList(conv_bn(a, b // 2, 1) for a, b in pairwise(widths))
        self.cheap = nn.ModuleList(conv_bn(b // 2, b // 2, 3, groups=b // 2) for b in widths[1:])
        self.shrink = nn.MaxPool2d(2)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, image: Tensor) -> Tensor:
        x = self.stem(image)
        for primary, cheap in zip(self.primary, self.cheap, strict=True):
            main = primary(x)
            x = self.shrink(torch.cat([main, cheap(main)], 1))
        return self.head(x.mean((2, 3)))


class Hourglass(nn.Module):
    """Stacked hourglass for key points (Newell et al., 2016), recursive, with one heat map output per stack."""

    def __init__(self, width: int = 24, depth: int = 3, stacks: int = 2, points: int = 7) -> None:
        """Makes the network.

        Args:
            width: channels.
            depth: number of times that an hourglass halves the resolution.
            stacks: number of hourglasses.
            points: number of key points, each a channel of the heat maps.
        """
        super().__init__()
        self.depth = depth
        self.stem = conv_bn(3, width, 3, 2)
        self.skips = nn.ModuleList(nn.ModuleList(conv_bn(width, width) for _ in range(depth)) for _ in range(stacks))
        self.lows = nn.ModuleList(nn.ModuleList(conv_bn(width, width) for _ in range(depth + 1)) for _ in range(stacks))
        self.heads = nn.ModuleList(nn.Conv2d(width, points, 1) for _ in range(stacks))
        self.back = nn.ModuleList(nn.Conv2d(points, width, 1) for _ in range(stacks))

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        x, maps = self.stem(image), []
        for stack, head in enumerate(self.heads):
            inner = self._glass(x, stack, 0)
            maps.append(head(inner))
            x = x + inner + self.back[stack](maps[-1])
        return tuple(maps)

    def _glass(self, x: Tensor, stack: int, level: int) -> Tensor:
        skips: Any = self.skips[stack]
        lows: Any = self.lows[stack]
        if level == self.depth:
            return lows[level](x)
        low = self._glass(lows[level](functional.max_pool2d(x, 2)), stack, level + 1)
        return skips[level](x) + functional.interpolate(low, scale_factor=2.0, mode="nearest")


class SuperResolution(nn.Module):
    """ESPCN (Shi et al., 2016): convolutions at low resolution, pixel shuffle at the end."""

    def __init__(self, width: int = 32, scale: int = 3) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, width, 5, padding=2), nn.Tanh(), nn.Conv2d(width, width, 3, padding=1), nn.Tanh(),
            nn.Conv2d(width, scale * scale, 3, padding=1), nn.PixelShuffle(scale),
        )  # fmt: skip

    def forward(self, image: Tensor) -> Tensor:
        return self.layers(image)


class MLPMixer(nn.Module):
    """MLP-Mixer (Tolstikhin et al., 2021)."""

    def __init__(self, image: int = 64, patch: int = 8, width: int = 64, blocks: int = 4, classes: int = 10) -> None:
        """Makes the network.

        Args:
            image: side of the image, pixels.
            patch: side of a patch, pixels.
            width: channels, and width of the MLPs over tokens.
            blocks: number of mixer blocks.
            classes: number of outputs.
        """
        super().__init__()
        tokens = (image // patch) ** 2
        self.embed = nn.Conv2d(3, width, patch, patch)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * blocks))
        self.over_tokens = nn.ModuleList(
            nn.Sequential(nn.Linear(tokens, width), nn.GELU(), nn.Linear(width, tokens)) for _ in range(blocks)
        )
        self.over_channels = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(blocks)
        )
        self.head = nn.Linear(width, classes)

    def forward(self, image: Tensor) -> Tensor:
        x = self.embed(image).flatten(2).transpose(1, 2)
        for index, (tokens, channels) in enumerate(zip(self.over_tokens, self.over_channels, strict=True)):
            x = x + tokens(self.norms[2 * index](x).transpose(1, 2)).transpose(1, 2)
            x = x + channels(self.norms[2 * index + 1](x))
        return self.head(x.mean(1))


class PointNet(nn.Module):
    """PointNet classifier (Qi et al., 2017) with its learned input transform."""

    def __init__(self, width: int = 32, classes: int = 10) -> None:
        super().__init__()

        def shared(*sizes: int) -> nn.Module:
            layers: list[nn.Module] = []
            for a, b in pairwise(sizes):
                layers += [nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU()]
            return nn.Sequential(*layers)

        self.transform = shared(3, width, 2 * width)
        self.matrix = nn.Linear(2 * width, 9)
        self.features = shared(3, width, 4 * width)
        self.head = nn.Sequential(nn.Linear(4 * width, width), nn.ReLU(), nn.Linear(width, classes))

    def forward(self, points: Tensor) -> Tensor:
        matrix = self.matrix(self.transform(points).amax(2)).reshape(-1, 3, 3)
        moved = torch.matmul(matrix + torch.eye(3), points)
        return self.head(self.features(moved).amax(2))


class Recurrent(nn.Module):
    """Embedding, a stack of LSTM or GRU layers (both directions if asked), a classifier of the last step."""

    def __init__(
        self, cell: str = "LSTM", width: int = 64, layers: int = 2, bidirectional: bool = False, vocabulary: int = 200
    ) -> None:
        """Makes the network.

        Args:
            cell: "LSTM", "GRU" or "RNN".
            width: width of embeddings and states.
            layers: number of recurrent layers.
            bidirectional: read the sequence in both directions.
            vocabulary: number of different tokens, and of outputs.
        """
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        kind = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN}[cell]
        self.cells = kind(width, width, layers, batch_first=True, bidirectional=bidirectional)
        self.head = nn.Linear(width * (2 if bidirectional else 1), vocabulary)

    def forward(self, input_ids: Tensor) -> Tensor:
        states, _ = self.cells(self.embed(input_ids))
        return self.head(states)


class CRNN(nn.Module):
    """Text recogniser: convolutions, then a bidirectional LSTM along the width (Shi et al., 2015)."""

    def __init__(self, width: int = 32, symbols: int = 40) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            conv_bn(1, width), nn.MaxPool2d(2), conv_bn(width, 2 * width), nn.MaxPool2d(2),
            conv_bn(2 * width, 2 * width), nn.MaxPool2d((8, 1)),
        )  # fmt: skip
        self.cells = nn.LSTM(2 * width, 2 * width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(4 * width, symbols)

    def forward(self, image: Tensor) -> Tensor:
        columns = self.convolutions(image).squeeze(2).transpose(1, 2)
        return self.head(self.cells(columns)[0]).log_softmax(-1)


class SpeechRecogniser(nn.Module):
    """DeepSpeech-2-like: strided convolutions over a spectrogram, GRU layers, a linear classifier per frame."""

    def __init__(self, bins: int = 40, width: int = 64, symbols: int = 30) -> None:
        """Makes the network.

        Args:
            bins: frequencies of the spectrogram.
            width: width of the states of the GRU.
            symbols: number of outputs per frame.
        """
        super().__init__()
        self.convolutions = nn.Sequential(conv_bn(1, 8, 3, 2), conv_bn(8, 8, 3))
        self.cells = nn.GRU(8 * (bins // 2), width, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, symbols)

    def forward(self, spectrogram: Tensor) -> Tensor:
        features = self.convolutions(spectrogram)
        frames = features.permute(0, 3, 1, 2).flatten(2)
        return self.head(self.cells(frames)[0])


class TCN(nn.Module):
    """Temporal convolutional network (Bai et al., 2018): dilated causal convolutions with residuals."""

    def __init__(self, channels: int = 8, width: int = 32, levels: int = 5, outputs: int = 4) -> None:
        """Makes the network.

        Args:
            channels: input channels.
            width: channels of all layers.
            levels: number of layers; their dilations are powers of 2.
            outputs: number of outputs.
        """
        super().__init__()
        self.enter = nn.Conv1d(channels, width, 1)
        self.dilations = [2**level for level in range(levels)]
        self.layers = nn.ModuleList(nn.Conv1d(width, width, 3, dilation=dilation) for dilation in self.dilations)
        self.head = nn.Linear(width, outputs)

    def forward(self, series: Tensor) -> Tensor:
        x = self.enter(series)
        for dilation, layer in zip(self.dilations, self.layers, strict=True):
            x = x + torch.relu(layer(functional.pad(x, (2 * dilation, 0))))
        return self.head(x[:, :, -1])


class WaveNet(nn.Module):
    """WaveNet (van den Oord et al., 2016): gated dilated convolutions with residual and skip sums."""

    def __init__(self, width: int = 24, levels: int = 8, classes: int = 64) -> None:
        """Makes the network.

        Args:
            width: channels.
            levels: number of gated convolutions; their dilations repeat 1, 2, 4, 8.
            classes: output channels.
        """
        super().__init__()
        self.enter = nn.Conv1d(1, width, 1)
        self.dilations = [2 ** (level % 4) for level in range(levels)]
        self.gates = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=dilation) for dilation in self.dilations)
        self.residuals = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(levels))
        self.skips = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(levels))
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(width, width, 1), nn.ReLU(), nn.Conv1d(width, classes, 1))

    def forward(self, wave: Tensor) -> Tensor:
        x = self.enter(wave)
        total = torch.zeros_like(x)
        for dilation, gate, residual, skip in zip(self.dilations, self.gates, self.residuals, self.skips, strict=True):
            left, right = gate(functional.pad(x, (dilation, 0))).chunk(2, 1)
            hidden = left.tanh() * right.sigmoid()
            total = total + skip(hidden)
            x = x + residual(hidden)
        return self.head(total)


class DLRM(nn.Module):
    """Recommender (Naumov et al., 2019): embedded categories, dot products of all pairs, two MLPs."""

    def __init__(self, dense: int = 13, tables: int = 8, rows: int = 500, width: int = 16) -> None:
        """Makes the network.

        Args:
            dense: number of dense features.
            tables: number of categorical features, each with a table of embeddings.
            rows: categories of each.
            width: width of embeddings.
        """
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(dense, 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 64), nn.ReLU(), nn.Linear(64, 1))
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        bottom = self.bottom(dense)
        rows = [bottom] + [table(categories[:, index]) for index, table in enumerate(self.tables)]
        stacked = torch.stack(rows, 1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        pairs: Any = self.pairs
        return self.top(torch.cat([bottom, products[:, pairs[0], pairs[1]]], 1)).sigmoid()


class NCF(nn.Module):
    """Neural collaborative filtering (He et al., 2017): a product of embeddings beside an MLP."""

    def __init__(self, users: int = 400, items: int = 700, width: int = 16) -> None:
        """Makes the network.

        Args:
            users: number of users.
            items: number of items.
            width: width of embeddings.
        """
        super().__init__()
        self.user_product, self.item_product = nn.Embedding(users, width), nn.Embedding(items, width)
        self.user_mlp, self.item_mlp = nn.Embedding(users, width), nn.Embedding(items, width)
        self.mlp = nn.Sequential(nn.Linear(2 * width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width), nn.ReLU())
        self.head = nn.Linear(2 * width, 1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        product = self.user_product(user) * self.item_product(item)
        mixed = self.mlp(torch.cat([self.user_mlp(user), self.item_mlp(item)], 1))
        return self.head(torch.cat([product, mixed], 1)).sigmoid()


class WideAndDeep(nn.Module):
    """Wide & Deep (Cheng et al., 2016): a linear part over categories beside an MLP."""

    def __init__(self, features: int = 6, rows: int = 300, width: int = 16) -> None:
        """Makes the network.

        Args:
            features: number of categorical features.
            rows: categories in all of them together.
            width: width of embeddings.
        """
        super().__init__()
        self.wide = nn.Embedding(rows, 1)
        self.deep = nn.Embedding(rows, width)
        self.mlp = nn.Sequential(
            nn.Linear(features * width, 64),
            nn.BatchNorm1d(64),
            nn.ReLU(),
            nn.Linear(64, 32),
            nn.ReLU(),
            nn.Linear(32, 1),
        )

    def forward(self, categories: Tensor) -> Tensor:
        return self.wide(categories).sum(1) + self.mlp(self.deep(categories).flatten(1))


class GraphConvolution(nn.Module):
    """Three rounds of message passing over an edge list, by gather and scatter-add."""

    def __init__(self, features: int = 16, width: int = 32, classes: int = 5) -> None:
        """Makes the network.

        Args:
            features: input features of a node.
            width: width between rounds.
            classes: outputs of a node.
        """
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(features, width), nn.Linear(width, width), nn.Linear(width, classes)])

    def forward(self, features: Tensor, edges: Tensor) -> Tensor:
        x = features
        for index, layer in enumerate(self.layers):
            message = layer(x)
            x = message.index_add(0, edges[1], message[edges[0]])
            if index < 2:
                x = torch.relu(x) * 0.5
        return x


class MixtureOfExperts(nn.Module):
    """A softly gated mixture of expert MLPs between two attention layers."""

    def __init__(self, width: int = 48, experts: int = 4, classes: int = 6) -> None:
        """Makes the network.

        Args:
            width: width of the sequence.
            experts: number of experts.
            classes: number of outputs.
        """
        super().__init__()
        self.attend = nn.ModuleList(nn.MultiheadAttention(width, 4, batch_first=True) for _ in range(2))
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)) for _ in range(experts)
        )
        self.head = nn.Linear(width, classes)

    def forward(self, sequence: Tensor) -> Tensor:
        x = sequence + self.attend[0](sequence, sequence, sequence, need_weights=False)[0]
        weights = self.gate(x).softmax(-1)
        mixed = torch.stack([expert(x) for expert in self.experts], -1)
        x = x + (mixed * weights[:, :, None, :]).sum(-1)
        x = x + self.attend[1](x, x, x, need_weights=False)[0]
        return self.head(x.mean(1))


class Siamese(nn.Module):
    """Two images through one encoder, their distance and both embeddings: shared weights, several outputs."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            conv_bn(3, width, 3, 2), conv_bn(width, 2 * width, 3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a, b = self.encoder(left), self.encoder(right)
        return (a - b).pow(2).sum(1, keepdim=True), a, b


class Autoencoder(nn.Module):
    """Convolutional autoencoder with a dense bottleneck, for anomaly detection."""

    def __init__(self, width: int = 16, code: int = 24) -> None:
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv2d(1, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, 2, 1), nn.ReLU(), nn.Flatten(),
            nn.Linear(2 * width * 49, code),
        )  # fmt: skip
        self.expand = nn.Linear(code, 2 * width * 49)
        self.decode = nn.Sequential(
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(width, 1, 4, 2, 1),
            nn.Sigmoid(),
        )

    def forward(self, image: Tensor) -> Tensor:
        code = self.encode(image)
        return self.decode(torch.relu(self.expand(code)).reshape(image.shape[0], -1, 7, 7))


class StepCell(nn.Module):
    """One step of a two-layer LSTM language model; its four states go in and out."""

    def __init__(self, width: int = 48, vocabulary: int = 120) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.first, self.second = nn.LSTMCell(width, width), nn.LSTMCell(width, width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, token: Tensor, h1: Tensor, c1: Tensor, h2: Tensor, c2: Tensor) -> tuple[Tensor, ...]:
        """Runs a step.

        Args:
            token: ids, int64 [batch].
            h1: hidden state of the first layer, float32 [batch, width].
            c1: cell state of the first layer.
            h2: hidden state of the second layer.
            c2: cell state of the second layer.

        Returns:
            Logits, float32 [batch, vocabulary], and the new states in the order of the arguments.
        """
        h1, c1 = self.first(self.embed(token), (h1, c1))
        h2, c2 = self.second(h1, (h2, c2))
        return self.head(h2), h1, c1, h2, c2


class LoopedCell(nn.Module):
    """A scripted loop over time around a GRU cell: becomes a Loop operation."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.enter = nn.Linear(width, width)
        self.loop = torch.jit.script(_Steps(width))
        self.head = nn.Linear(width, width)

    def forward(self, sequence: Tensor) -> Tensor:
        return self.head(self.loop(self.enter(sequence)))


class _Steps(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.update = nn.Linear(2 * width, width)
        self.change = nn.Linear(2 * width, width)

    def forward(self, sequence: Tensor) -> Tensor:
        state = torch.zeros_like(sequence[:, 0])
        for step in range(sequence.shape[1]):
            both = torch.cat([sequence[:, step], state], 1)
            gate = torch.sigmoid(self.update(both))
            state = gate * state + (1.0 - gate) * torch.tanh(self.change(both))
        return state


class Branching(nn.Module):
    """A scripted branch on a value computed from the input: becomes an If operation."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.enter = nn.Linear(width, width)
        self.branch = torch.jit.script(_Either(width))
        self.head = nn.Linear(width, width)

    def forward(self, features: Tensor) -> Tensor:
        return self.head(torch.relu(self.branch(self.enter(features))))


class _Either(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, features: Tensor) -> Tensor:
        # Not a conditional expression: only the statement is scripted to an If with a body for each side.
        if bool(features.sum() > 0):  # noqa: SIM108
            result = self.left(features)
        else:
            result = self.right(features) * 2.0
        return result


class DecoderStep(nn.Module):
    """A transformers decoder with explicit past keys and values, as exported for deployment.

    Its inputs are token ids [1, 1], then key and value of each layer [1, heads, past, size]. Its outputs are logits,
    then the keys and values with the new token.
    """

    def __init__(self, model: str, config: dict[str, Any]) -> None:
        super().__init__()
        import transformers

        cls = getattr(transformers, model)
        self.model = cls(cls.config_class(**config, attn_implementation="eager"))

    def forward(self, input_ids: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        from transformers import DynamicCache
        from transformers.cache_utils import DynamicLayer

        # The cache's own way to take content begins with an empty tensor of rank 1, which OpenVINO cannot concatenate.
        cache = DynamicCache()
        for key, value in zip(past[::2], past[1::2], strict=True):
            layer = DynamicLayer()
            layer.lazy_initialization(key, value)
            layer.keys, layer.values = key, value
            cache.layers.append(layer)
        result = self.model(input_ids=input_ids, past_key_values=cache, use_cache=True)
        grown = [tensor for layer in result.past_key_values.layers for tensor in (layer.keys, layer.values)]
        return (result.logits, *grown)


class EfficientNet(nn.Module):
    """EfficientNet of transformers with a global average pool: its own pool has a window as wide as its channels."""

    def __init__(self, **config: Any) -> None:
        super().__init__()
        import transformers

        cls = transformers.EfficientNetForImageClassification
        self.model = cls(cls.config_class(**config))
        self.model.efficientnet.pooler = nn.AdaptiveAvgPool2d(1)

    def forward(self, image: Tensor) -> Tensor:
        return self.model(image).logits
