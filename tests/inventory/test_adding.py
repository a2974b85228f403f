"""Adding devices: fingerprints are confirmed page by page, and nothing wrong or double gets in."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.test import Client
from django.utils.html import escape

from accounts.models import AuditEntry
from demo.hosts import DemoHost
from inventory import services
from inventory.forms.adding import SeveralForm, device_line
from inventory.forms.place import host_of
from inventory.models import Device, SshIdentity
from inventory.services import HostKey, NewDevice
from inventory.services.registration import CannotRegister
from jobs.models import Job


@pytest.mark.parametrize(
    "left_in_hidden_fields", [{}, {"host": "", "port": "22"}, {"host": "a b", "port": "x"}]
)
def test_this_machine_needs_a_name_only(
    admin_client: Client, db: None, left_in_hidden_fields: dict[str, str]
) -> None:
    typed = {"name": "here", "connection": "local"} | left_in_hidden_fields
    assert admin_client.post("/devices/add/", typed).status_code == 302
    assert Device.objects.get().connection == Device.Connections.LOCAL


def test_the_same_machine_is_not_registered_twice_without_a_word(
    admin_client: Client, devices: list[Device]
) -> None:
    typed = {"name": "other", "connection": "ssh", "host": "10.0.0.1", "port": "22", "username": "ada"}
    answer = admin_client.post("/devices/add/", typed)
    assert answer.status_code == 422 and "is already box-1" in answer.content.decode()
    lines = "other ada@10.0.0.1\nx ada@10.0.0.9\ny ada@10.0.0.9"
    several = admin_client.post("/devices/add/several/", {"lines": lines}).content.decode()
    assert "ada@10.0.0.1 port 22 is already box-1" in several and "ada@10.0.0.9:22 stands twice" in several
    with pytest.raises(CannotRegister, match="is already box-1"):
        services.register_device(NewDevice("other", "10.0.0.1", 22, "ada"), HOST_KEY, None)
    services.register_local("here", None)
    here = admin_client.post("/devices/add/", {"name": "again", "connection": "local"})
    assert here.status_code == 422 and "This machine is already here" in here.content.decode()
    assert Device.objects.count() == 4


@pytest.mark.parametrize(
    "algorithm, kind", [("ssh-ed25519", "ed25519"), ("ecdsa-sha2-nistp256", "ecdsa"), ("ssh-rsa", "rsa")]
)
def test_the_command_reads_the_key_that_was_shown(algorithm: str, kind: str) -> None:
    key = HostKey(algorithm, "SHA256:x", "line")
    assert services.print_command(key, "box", 22) == f"ssh-keygen -lf /etc/ssh/ssh_host_{kind}_key.pub"
    assert f"-t {kind} -p 2222 box" in services.print_command(key, "box", 2222)


@pytest.mark.parametrize(
    "field, value",
    [
        ("name", "-rf"),
        ("name", "a\nb"),
        ("name", "$(touch x)"),
        ("host", "-oProxyCommand=x"),
        ("host", "a b"),
        ("username", "--rpc=x"),
        ("port", "70000"),
        ("llama_folder", "relative/path"),
        ("llama_folder", "/opt/../etc"),
        ("model_roots", "/models\nnot/absolute"),
        ("address", "box.local"),
    ],
)
def test_what_cannot_be_is_refused_beside_its_field(admin_client: Client, field: str, value: str) -> None:
    typed = {"name": "box", "connection": "ssh", "host": "127.0.0.99", "port": "9", "username": "ada"}
    answer = admin_client.post("/devices/add/", typed | {field: value})
    assert answer.status_code == 422
    assert field in answer.context["form"].errors
    assert not Device.objects.exists()


def add(client: Client, host: DemoHost, **changes: str) -> Any:
    typed = {
        "name": host.name,
        "connection": "ssh",
        "host": host.address,
        "port": str(host.port),
        "username": host.username,
        "password": host.password,
    }
    return client.post("/devices/add/", typed | changes, follow=True)


def path_of(shown: Any) -> str:
    """Where the click on a page of fingerprints goes."""
    return str(shown.redirect_chain[-1][0])


@pytest.mark.usefixtures("valkey_url")
@pytest.mark.django_db(transaction=True)
def test_a_device_is_added_after_its_fingerprint_was_confirmed(
    admin_client: Client, lab: list[DemoHost]
) -> None:
    shown = add(admin_client, lab[0])
    assert "SHA256:" in shown.content.decode()
    assert f"ssh-keyscan -t ed25519 -p {lab[0].port} {lab[0].address}" in shown.content.decode()
    assert lab[0].password not in shown.content.decode()
    assert not Device.objects.exists()
    assert not lab[0].authorized_keys.exists()
    page = admin_client.post(path_of(shown), follow=True)
    assert page.status_code == 200
    device = Device.objects.get()
    assert Job.objects.get().kind == "inventory.probe_device"
    assert SshIdentity.objects.get().public_key in lab[0].authorized_keys.read_text()
    assert device.host_key and device.address == lab[0].address
    assert lab[0].password not in str(dict(admin_client.session.items()))


@pytest.mark.usefixtures("valkey_url")
@pytest.mark.django_db(transaction=True)
def test_each_of_two_open_pages_confirms_the_host_that_it_shows(
    admin_client: Client, lab: list[DemoHost]
) -> None:
    first, second = add(admin_client, lab[0]), add(admin_client, lab[1])
    admin_client.post(path_of(first))
    device = Device.objects.get()
    assert (device.name, device.host) == (lab[0].name, lab[0].address)
    assert device.host_key == " ".join(lab[0].public_key.split()[:2])
    assert not lab[1].authorized_keys.exists()
    admin_client.post(path_of(second))
    assert Device.objects.get(name=lab[1].name).host == lab[1].address


@pytest.mark.usefixtures("valkey_url")
@pytest.mark.django_db(transaction=True)
def test_a_page_that_was_confirmed_already_asks_to_look_it_up_again(
    admin_client: Client, lab: list[DemoHost]
) -> None:
    shown = add(admin_client, lab[0], password="wrong-password")
    admin_client.post(path_of(shown))
    text = admin_client.post(path_of(shown), follow=True).content.decode()
    assert "Look the host up again" in text and f'value="{lab[0].address}"' in text
    assert "wrong-password" not in text
    assert "Look the host up again" in admin_client.get("/devices/add/confirm/unknown/").content.decode()
    assert not Device.objects.exists()


@pytest.mark.usefixtures("valkey_url")
@pytest.mark.django_db(transaction=True)
def test_a_wrong_password_leaves_nothing_behind_and_keeps_what_was_typed(
    admin_client: Client, lab: list[DemoHost]
) -> None:
    shown = add(admin_client, lab[0], password="wrong-password")
    answer = admin_client.post(path_of(shown))
    text = answer.content.decode()
    assert answer.status_code == 422
    assert "refused the password" in text and "Nothing was saved" in text and f'value="{lab[0].name}"' in text
    assert "wrong-password" not in text
    assert not Device.objects.exists()
    assert not Job.objects.exists()


@pytest.mark.usefixtures("valkey_url")
@pytest.mark.django_db(transaction=True)
def test_several_are_added_at_once_but_only_those_ticked(admin_client: Client, lab: list[DemoHost]) -> None:
    for host in lab[:2]:  # the same password on both, as in a lab
        (host.folder / "password").write_text("one for all")
    lines = "\n".join(f"{host.name} {host.username}@{host.address}:{host.port}" for host in lab[:2])
    typed = {"lines": f"{lines}\nnobody@127.0.0.99:9", "password": "one for all"}
    shown = admin_client.post("/devices/add/several/", typed, follow=True)
    page = shown.content.decode()
    assert page.count("SHA256:") == 2 and "Not reached" in page
    assert f"ssh-keyscan -t ed25519 -p {lab[0].port} {lab[0].address}" in page
    admin_client.post(path_of(shown))
    assert not Device.objects.exists()
    admin_client.post(path_of(shown), {"device": [lab[0].name, "127.0.0.99"]})
    assert [device.name for device in Device.objects.all()] == [lab[0].name]
    assert Job.objects.get().subject == Device.objects.get().subject
    assert not lab[1].authorized_keys.exists()
    again = admin_client.post(path_of(shown), {"device": [lab[1].name]}).content.decode()
    assert "Look the hosts up again" in again and lab[1].address in again
    assert Device.objects.count() == 1


@pytest.mark.parametrize(
    "line, words",
    [
        ("just some words", "not of the form"),
        ("box ada@-oProxyCommand=x", "host name or an IP"),
        ("box ada@10.0.0.1:99999", "port 99999 does not exist"),
        ("-rf ada@10.0.0.1", "begin with a letter"),
        ("a ada@10.0.0.1\na ada@10.0.0.2", "stands twice"),
    ],
)
def test_a_line_that_cannot_be_is_named(line: str, words: str, admin_client: Client) -> None:
    answer = admin_client.post("/devices/add/several/", {"lines": line})
    assert answer.status_code == 422
    assert words in answer.content.decode()


def test_lines_may_leave_out_name_and_port() -> None:
    assert device_line("ada@10.0.0.1") == NewDevice("10.0.0.1", "10.0.0.1", 22, "ada")
    assert device_line("big box ada@10.0.0.1:2222") == NewDevice("big box", "10.0.0.1", 2222, "ada")
    assert device_line("six, ada@[fe80::1]:22") == NewDevice("six", "fe80::1", 22, "ada")
    assert device_line("v6 cleo@[::1]:2211") == NewDevice("v6", "::1", 2211, "cleo")
    assert device_line("v6 cleo@::1") == NewDevice("v6", "::1", 22, "cleo")
    assert device_line("cleo@[fe80::1%eth0]") == NewDevice("ip-fe80-1-eth0", "fe80::1%eth0", 22, "cleo")


@pytest.mark.django_db
def test_comments_and_empty_lines_are_no_devices() -> None:
    form = SeveralForm({"lines": "# the two of the attic\n\n  a ada@10.0.0.1\n#b ada@10.0.0.2\n"})
    assert form.is_valid() and [new.name for new in form.cleaned_data["lines"]] == ["a"]
    assert "Every line is a comment" in str(SeveralForm({"lines": "# nothing"}).errors)


@pytest.mark.parametrize(
    "typed, host",
    [
        ("::1", "::1"),
        ("[::1]", "::1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("box.lan", "box.lan"),
        ("10.0.0.1", "10.0.0.1"),
    ],
)
def test_a_host_is_taken_as_ssh_takes_it(typed: str, host: str) -> None:
    assert host_of(typed) == host


@pytest.mark.parametrize(
    "typed, words",
    [
        ("ben@127.0.0.12", "the user 'ben' has a field of its own"),
        ("[::1]:22", "A port has a place of its own"),
        ("box:22", "A port has a place of its own"),
        ("[box]", "no IPv6 address"),
        ("-oProxyCommand=x", "Enter a host name"),
    ],
)
def test_a_host_that_is_none_is_refused_with_what_to_do(typed: str, words: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(words)):
        host_of(typed)


def test_an_unknown_host_is_named_alike_alone_and_among_several(admin_client: Client) -> None:
    typed = {"name": "box", "connection": "ssh", "host": "127.0.0.99", "port": "9", "username": "ada"}
    alone = admin_client.post("/devices/add/", typed)
    problem = alone.context["form"].errors["host"][0]
    several = admin_client.post("/devices/add/several/", {"lines": "box ada@127.0.0.99:9"}, follow=True)
    assert several.context["items"][0]["problem"] == problem
    assert escape(problem) in several.content.decode()


def test_an_unknown_host_is_named_with_a_remedy(admin_client: Client) -> None:
    typed = {"name": "box", "connection": "ssh", "host": "127.0.0.99", "port": "9", "username": "ada"}
    answer = admin_client.post("/devices/add/", typed)
    assert answer.status_code == 422
    assert "127.0.0.99 port 9 cannot be reached" in answer.content.decode()
    assert not Device.objects.exists()


@pytest.mark.usefixtures("valkey_url")
@pytest.mark.django_db(transaction=True)
def test_a_changed_host_key_shows_both_fingerprints_and_needs_a_reason(
    admin_client: Client, lab: list[DemoHost]
) -> None:
    admin_client.post(path_of(add(admin_client, lab[0])))
    device = Device.objects.get()
    right = device.host_key
    refused = admin_client.post(f"/devices/{device.pk}/host-key/", {"line": HOST_KEY, "reason": "r"})
    assert "Compare again" in refused.content.decode() and Device.objects.get().host_key == right
    Device.objects.filter(pk=device.pk).update(host_key=HOST_KEY)
    page = admin_client.get(f"/devices/{device.pk}/host-key/").content.decode()
    assert page.count("SHA256:") == 2 and "The two differ" in page
    assert f"ssh-keyscan -t ed25519 -p {lab[0].port} {lab[0].address}" in page
    assert admin_client.post(f"/devices/{device.pk}/host-key/", {"line": right}).status_code == 422
    assert Device.objects.get().host_key == HOST_KEY
    admin_client.post(f"/devices/{device.pk}/host-key/", {"line": right, "reason": "new disk"})
    assert Device.objects.get().host_key == right
    assert AuditEntry.objects.get(action="device.host_key_changed").detail["reason"] == "new disk"


HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ3oQYQ0aA2Bb6cJ8vYV8tqE7m3b8Z4oJ4n7fWm0Q2bT"


def test_a_password_that_was_not_used_is_asked_for_again(admin_client: Client, db: None) -> None:
    lines = {"lines": "box ada@10.0.0.1\n???", "password": "one for all"}
    several = admin_client.post("/devices/add/several/", lines).content.decode()
    one = admin_client.post(
        "/devices/add/", {"name": "x", "host": "a b", "password": "secret"}
    ).content.decode()
    for text in (several, one):
        assert "Type it again: passwords are not kept." in text
    without = admin_client.post("/devices/add/several/", lines | {"password": ""}).content.decode()
    assert "Type it again" not in without
