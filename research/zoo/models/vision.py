"""Vision: classification, segmentation, detection, depth, and vision with text."""

from __future__ import annotations

from typing import Any

from research.zoo.models.base import ZooModel, model
from research.zoo.models.inputs import Input, Inputs, image, inputs
from research.zoo.models.recipes import Torch, Transformers

_VIT: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "image_size": 64,
    "patch_size": 8,
}
_RESNET: dict[str, Any] = {
    "embedding_size": 16,
    "hidden_sizes": [16, 32, 64, 128],
    "depths": [1, 1, 2, 1],
    "layer_type": "basic",
}
_STAGES: dict[str, Any] = {"hidden_sizes": [16, 32, 32, 64], "depths": [1, 1, 1, 1]}
_PYRAMID: dict[str, Any] = {**_STAGES, "num_attention_heads": [1, 2, 2, 4]}
_CONVNEXT: dict[str, Any] = {"hidden_sizes": [16, 32, 64, 128], "depths": [1, 1, 2, 1]}
_SWIN: dict[str, Any] = {
    "embed_dim": 24,
    "depths": [1, 2, 1],
    "num_heads": [2, 4, 8],
    "window_size": 4,
    "image_size": 64,
}
_TEXT_TOWER: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 1,
}
_VISION_TOWER: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}


def _classifier(name: str, family: str, cls: str, size: int = 64, *tags: str, **config: Any) -> ZooModel:
    return model(name, family, Transformers(cls, config, "logits"), image(size), *tags)


def _of_image(
    name: str, family: str, cls: str, config: dict[str, Any], output: str | tuple[str, ...], size: int = 64
) -> ZooModel:
    return model(name, family, Transformers(cls, config, output), image(size))


_TWO_TOWERS = inputs(
    Input("input_ids", (2, 16), "tokens", 300, 3),
    Input("pixel_values", (3, 3, 32, 32)),
    Input("attention_mask", (2, 16), "ones"),
)


def _towers(name: str, family: str, cls: str, **config: Any) -> ZooModel:
    both = {"text_config": _TEXT_TOWER, "vision_config": _VISION_TOWER, **config}
    recipe = Transformers(cls, both, ("logits_per_image", "text_embeds", "image_embeds"))
    return model(name, family, recipe, _TWO_TOWERS)


MODELS: tuple[ZooModel, ...] = (
    # Real sizes
    _classifier("vit-base", "vit", "ViTForImageClassification", 224, "full", num_labels=1000),
    _classifier("swin-tiny", "swin", "SwinForImageClassification", 224, "full", num_labels=1000),
    _classifier("convnext-tiny", "convnext", "ConvNextForImageClassification", 224, "full", num_labels=1000),
    _classifier(
        "mobilenet-v2", "mobilenet", "MobileNetV2ForImageClassification", 224, "quick", "full", num_labels=1000
    ),
    model(
        "efficientnet-b0",
        "efficientnet",
        Torch(
            "EfficientNet",
            {
                "num_labels": 1000,
                "width_coefficient": 1.0,
                "depth_coefficient": 1.0,
                "hidden_dim": 1280,
                "image_size": 224,
            },
        ),
        image(224),
        "full",
    ),
    _classifier(
        "regnet-y-400mf",
        "regnet",
        "RegNetForImageClassification",
        224,
        "full",
        num_labels=1000,
        hidden_sizes=[48, 104, 208, 440],
        depths=[1, 3, 6, 6],
        groups_width=8,
        embedding_size=32,
    ),
    _classifier("mobilevit-s", "mobilevit", "MobileViTForImageClassification", 256, "full", num_labels=1000),
    model(
        "segformer-b0", "segformer", Transformers("SegformerForSemanticSegmentation", {}, "logits"), image(512), "full"
    ),
    model("inception-v3", "inception", Torch("InceptionV3"), image(299), "full"),
    # Convolutional
    _classifier("resnet-small", "resnet", "ResNetForImageClassification", **_RESNET),
    _classifier(
        "resnet-bottleneck-small", "resnet", "ResNetForImageClassification", **{**_RESNET, "layer_type": "bottleneck"}
    ),
    _classifier(
        "bit-small",
        "resnet",
        "BitForImageClassification",
        embedding_size=32,
        hidden_sizes=[32, 64, 64, 128],
        depths=[1, 1, 1, 1],
        num_groups=8,
    ),
    _classifier(
        "regnet-small",
        "regnet",
        "RegNetForImageClassification",
        embedding_size=16,
        hidden_sizes=[16, 32, 32, 64],
        depths=[1, 1, 2, 1],
        groups_width=8,
    ),
    _classifier("convnext-small", "convnext", "ConvNextForImageClassification", **_CONVNEXT),
    _classifier("convnextv2-small", "convnext", "ConvNextV2ForImageClassification", **_CONVNEXT),
    _classifier("mobilenet-v1-small", "mobilenet", "MobileNetV1ForImageClassification", depth_multiplier=0.25),
    _classifier("mobilenet-v2-small", "mobilenet", "MobileNetV2ForImageClassification", depth_multiplier=0.35),
    model(
        "efficientnet-small",
        "efficientnet",
        Torch(
            "EfficientNet", {"width_coefficient": 0.5, "depth_coefficient": 0.5, "hidden_dim": 640, "image_size": 64}
        ),
        image(64),
    ),
    _classifier("hgnet-small", "hgnet", "HGNetV2ForImageClassification", 64),
    _classifier("textnet-small", "textnet", "TextNetForImageClassification", 64),
    _classifier("poolformer-small", "poolformer", "PoolFormerForImageClassification", **_STAGES),
    _classifier(
        "focalnet-small",
        "focalnet",
        "FocalNetForImageClassification",
        image_size=64,
        embed_dim=24,
        hidden_sizes=[24, 48, 96],
        depths=[1, 1, 1],
        focal_levels=[2, 2, 2],
        focal_windows=[3, 3, 3],
    ),
    model("inception-v3-small", "inception", Torch("InceptionV3", {"width": 0.25, "classes": 50}), image(107)),
    model("resnext-small", "resnext", Torch("ResNeXt"), image(64)),
    model("se-resnext-small", "resnext", Torch("ResNeXt", {"squeeze": True}), image(64)),
    model("ghostnet-small", "ghostnet", Torch("Ghost"), image(64)),
    # Transformers
    _classifier("vit-small", "vit", "ViTForImageClassification", **_VIT),
    _classifier("deit-small", "vit", "DeiTForImageClassification", **_VIT),
    _classifier("beit-small", "beit", "BeitForImageClassification", **_VIT, use_relative_position_bias=True),
    _classifier(
        "dinov2-small",
        "dinov2",
        "Dinov2ForImageClassification",
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        mlp_ratio=2,
        image_size=64,
        patch_size=8,
    ),
    _classifier("swin-small", "swin", "SwinForImageClassification", **_SWIN),
    _classifier("swinv2-small", "swin", "Swinv2ForImageClassification", **_SWIN),
    _classifier("pvt-small", "pvt", "PvtForImageClassification", image_size=64, **_PYRAMID),
    _classifier("pvt-v2-small", "pvt", "PvtV2ForImageClassification", image_size=64, **_PYRAMID),
    _classifier(
        "mobilevit-small",
        "mobilevit",
        "MobileViTForImageClassification",
        image_size=64,
        hidden_sizes=[32, 48, 64],
        neck_hidden_sizes=[16, 16, 24, 32, 48, 64, 128],
    ),
    _classifier(
        "mobilevitv2-small", "mobilevit", "MobileViTV2ForImageClassification", image_size=64, width_multiplier=0.25
    ),
    _classifier(
        "swiftformer-small",
        "swiftformer",
        "SwiftFormerForImageClassification",
        depths=[1, 1, 1, 1],
        embed_dims=[16, 32, 32, 64],
    ),
    _classifier(
        "levit-small",
        "levit",
        "LevitForImageClassification",
        64,
        image_size=64,
        hidden_sizes=[32, 48, 64],
        num_attention_heads=[2, 3, 4],
        depths=[1, 1, 1],
        key_dim=[8, 8, 8],
    ),
    _classifier(
        "cvt-small", "cvt", "CvtForImageClassification", embed_dim=[16, 32, 64], num_heads=[1, 2, 4], depth=[1, 2, 3]
    ),
    _classifier(
        "hiera-small",
        "hiera",
        "HieraForImageClassification",
        64,
        embed_dim=16,
        image_size=[64, 64],
        depths=[1, 1, 1],
        num_heads=[1, 2, 4],
        num_query_pool=2,
    ),
    model("mlp-mixer-small", "mixer", Torch("MLPMixer"), image(64)),
    model(
        "videomae-small",
        "videomae",
        Transformers("VideoMAEForVideoClassification", {**_VIT, "num_frames": 4, "tubelet_size": 2}, "logits"),
        Inputs((Input("pixel_values", (1, 4, 3, 64, 64)),)),
    ),
    # Frames and heads must differ in number: the CPU plugin of OpenVINO 2026.4 confuses them in its fused attention.
    model(
        "timesformer-small",
        "timesformer",
        Transformers("TimesformerForVideoClassification", {**_VIT, "num_frames": 6}, "logits"),
        Inputs((Input("pixel_values", (1, 6, 3, 64, 64)),)),
    ),
    # Segmentation, depth, restoration
    _of_image(
        "segformer-small",
        "segformer",
        "SegformerForSemanticSegmentation",
        {**_PYRAMID, "decoder_hidden_size": 32},
        "logits",
    ),
    _of_image(
        "glpn-small", "glpn", "GLPNForDepthEstimation", {**_PYRAMID, "decoder_hidden_size": 16}, "predicted_depth"
    ),
    _of_image(
        "dpt-small",
        "dpt",
        "DPTForDepthEstimation",
        {
            **_VIT,
            "num_hidden_layers": 4,
            "backbone_out_indices": [0, 1, 2, 3],
            "neck_hidden_sizes": [8, 16, 32, 64],
            "fusion_hidden_size": 16,
            "is_hybrid": False,
        },
        "predicted_depth",
    ),
    _of_image(
        "swin2sr-small",
        "swin",
        "Swin2SRForImageSuperResolution",
        {"image_size": 32, "embed_dim": 24, "depths": [2, 2], "num_heads": [2, 2], "window_size": 4, "upscale": 2},
        "reconstruction",
        32,
    ),
    model("unet-small", "unet", Torch("UNet"), image(64)),
    model("deeplab-small", "deeplab", Torch("DeepLab"), image(64)),
    model(
        "diffusion-unet-small",
        "diffusion",
        Torch("DiffusionUNet"),
        inputs(Input("sample", (1, 4, 16, 16)), Input("timestep", (1,), "tokens", 1000)),
    ),
    model("vae-decoder-small", "diffusion", Torch("VAEDecoder"), image(12, channels=4, name="latent")),
    model("super-resolution-small", "espcn", Torch("SuperResolution"), image(32, channels=1)),
    model("autoencoder-small", "autoencoder", Torch("Autoencoder"), image(28, channels=1)),
    # Detection and key points
    _of_image(
        "yolos-small",
        "yolos",
        "YolosForObjectDetection",
        {**_VIT, "image_size": [64, 64], "num_detection_tokens": 10},
        ("logits", "pred_boxes"),
    ),
    model("pyramid-detector-small", "retinanet", Torch("PyramidDetector"), image(64)),
    model("yolo-like-small", "yolo", Torch("YoloLike"), image(64)),
    model("hourglass-small", "hourglass", Torch("Hourglass"), image(64)),
    # Vision with text
    _towers("clip-small", "clip", "CLIPModel", projection_dim=32),
    _of_image(
        "clip-vision-small", "clip", "CLIPVisionModel", _VISION_TOWER, ("last_hidden_state", "pooler_output"), 32
    ),
    _towers("siglip-small", "siglip", "SiglipModel"),
    model(
        "siamese-small",
        "siamese",
        Torch("Siamese"),
        inputs(Input("left", (1, 3, 48, 48)), Input("right", (1, 3, 48, 48))),
    ),
)
