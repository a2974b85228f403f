"""A model that makes embeddings is served whole on one device: plans predict the speed of text."""

from __future__ import annotations

from typing import Any

from accounts.models import User
from inventory.core.model_shape import ModelShape
from inventory.core.quantities import bytes_text
from inventory.models import Device, LanguageModel
from planner.from_inventory import device_gap
from serving.models import Deployment
from serving.services import deployments
from serving.services.deployments import CannotDeploy


def serve_embeddings(
    model: LanguageModel, device: Device, slots: int, context_tokens: int, user: User | None
) -> Deployment:
    """Start the roll-out of the model on one device; CannotDeploy names what keeps it from that."""
    shape = ModelShape.from_dict(model.shape)
    if not shape.makes_embeddings:
        raise CannotDeploy(f"{model} makes text and no embeddings. Plan and deploy it instead.")
    if context_tokens > shape.context_train:
        raise CannotDeploy(
            f"{model} was trained on texts of up to {shape.context_train} tokens; {context_tokens} are too many."
        )
    gap = device_gap(device, model, has_profile=True)
    if gap is not None:
        raise CannotDeploy(gap.text)
    held_bytes = shape.weight_bytes + shape.compute_bytes(context_tokens, slots * context_tokens)
    if held_bytes > (device.gpu_usable_bytes or 0):
        raise CannotDeploy(
            f"{model} needs about {bytes_text(held_bytes)} and {device} has "
            f"{bytes_text(device.gpu_usable_bytes or 0)}. Take fewer slots, a shorter context or another device."
        )
    stage = whole_model(device, shape, held_bytes)
    replica = {"role": "mixed", "slots": slots, "micro_batch": 1, "stages": [stage]}
    plan = {"mode": "mixed", "replicas": [replica]}
    return deployments.deploy(plan, cluster_of(model, shape, device, context_tokens), model, user)


def whole_model(device: Device, shape: ModelShape, held_bytes: int) -> dict[str, Any]:
    return {
        "device": device.name,
        "master": True,
        "gpu_blocks": len(shape.blocks),
        "cpu_blocks": 0,
        "gpu_bytes": held_bytes,
        "gpu_limit_bytes": device.gpu_usable_bytes,
        "ram_bytes": 0,
    }


def cluster_of(
    model: LanguageModel, shape: ModelShape, device: Device, context_tokens: int
) -> dict[str, Any]:
    """What a roll-out reads of a cluster file; there are no links, since nothing is divided."""
    blocks = len(shape.blocks)
    return {
        "format": "e2llm-cluster/1",
        "model": {
            "name": model.name,
            "blocks": blocks,
            "block_bytes": sum(block.size_bytes for block in shape.blocks) // blocks,
            "block_resident_bytes": 0,
            "output_bytes": shape.output_bytes,
        },
        "workload": {"context_tokens": context_tokens, "input_tokens": context_tokens, "output_tokens": 0},
        "policy": {"handover": False},
        "links": {"default": {"bytes_per_second": 1e9, "latency_seconds": 0.0}},
        "devices": [{"name": device.name, "main_pool": device.main_pool}],
    }
