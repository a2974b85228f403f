"""What people and other apps ask of the inventory, by subject."""

from inventory.profiling import recalibrate
from inventory.remote import HostKey
from inventory.remote import host_key as read_host_key
from inventory.services.devices import (
    confirm_host_key,
    override_memory,
    register_local,
    removal_effects,
    removal_refusal,
    remove_device,
    same_machine_text,
    set_maintenance,
    settle,
    twins_of,
    use_probed_memory,
)
from inventory.services.language_models import left_out_text
from inventory.services.moving import move_device
from inventory.services.profiles import CannotReuse, reuse_offers, reuse_profile
from inventory.services.registration import (
    NewDevice,
    already_text,
    default_identity,
    known_as,
    look_up,
    look_up_all,
    place_text,
    print_command,
    register_device,
)
from inventory.services.work import (
    WouldDisturb,
    heartbeat,
    serving_now,
    start_copy,
    start_links,
    start_probe,
    start_profile,
    start_scan,
)

__all__ = [
    "CannotReuse",
    "HostKey",
    "NewDevice",
    "WouldDisturb",
    "already_text",
    "confirm_host_key",
    "default_identity",
    "heartbeat",
    "known_as",
    "left_out_text",
    "look_up",
    "look_up_all",
    "move_device",
    "override_memory",
    "place_text",
    "print_command",
    "register_device",
    "read_host_key",
    "recalibrate",
    "register_local",
    "removal_effects",
    "removal_refusal",
    "remove_device",
    "reuse_offers",
    "reuse_profile",
    "same_machine_text",
    "twins_of",
    "serving_now",
    "set_maintenance",
    "settle",
    "start_copy",
    "start_links",
    "start_probe",
    "start_profile",
    "start_scan",
    "use_probed_memory",
]
