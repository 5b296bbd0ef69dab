"""Ports: free ones, and the same as last time where that is possible."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

import laptop.ports
from laptop.ports import LOOPBACK, free_port, free_ports, is_free, reuse_port
from tests.ports import PORTS_OF_A_PROCESS, claim_ports


def test_a_port_in_use_is_not_free() -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        assert not is_free(server.getsockname()[1])


def test_a_port_is_kept_while_it_is_free_and_replaced_when_not(tmp_path: Path) -> None:
    port = reuse_port(tmp_path / "ports" / "broker")
    assert reuse_port(tmp_path / "ports" / "broker") == port
    with socket.create_server((LOOPBACK, port)):
        other = reuse_port(tmp_path / "ports" / "broker")
    assert other != port
    assert reuse_port(tmp_path / "ports" / "broker") == other


@pytest.mark.parametrize("content", ["", "x", "0", "-1", "70000"])
def test_a_damaged_note_is_replaced(tmp_path: Path, content: str) -> None:
    (tmp_path / "broker").write_text(content)
    assert is_free(reuse_port(tmp_path / "broker"))
    assert is_free(free_port())


def test_servers_of_one_folder_never_share_a_port(tmp_path: Path) -> None:
    few = range(31_900, 31_964)  # with these, chance alone would repeat one
    names = [f"server-{number}" for number in range(30)]
    assert len({reuse_port(tmp_path / name, few) for name in names}) == len(names)
    assert len(set(free_ports(30, few))) == 30


def test_two_notes_of_the_same_port_are_distinguished(tmp_path: Path) -> None:
    port = reuse_port(tmp_path / "prometheus")
    (tmp_path / "alertmanager").write_text(str(port))
    assert reuse_port(tmp_path / "alertmanager") != port
    assert reuse_port(tmp_path / "prometheus") == port


def test_a_port_is_not_chosen_again_while_others_are_free() -> None:
    """Its server may not listen yet."""
    few = range(31_800, 31_832)
    ports = [free_port(among=few) for _ in few]
    assert len(set(ports)) == sum(map(is_free, few))


def test_two_test_processes_never_choose_the_same_port() -> None:
    """Each claim is a socket, which one process cannot bind twice either."""
    ours = laptop.ports.server_ports
    first, claim = claim_ports()
    with claim:
        second, other = claim_ports()
        with other:
            assert len({*ours, *first, *second}) == 3 * (PORTS_OF_A_PROCESS - 1)
            assert all(port in ours for port in free_ports(20))
            with pytest.raises(RuntimeError, match="claimed all"):
                claim_ports(range(first.start - 1, first.stop))
    again, claim = claim_ports(range(first.start - 1, first.stop))
    with claim:
        assert again == first
