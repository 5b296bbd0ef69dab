"""The outbox of the Python client: what is in it survives, is bounded, and belongs to one sender at a time."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

from weir_client.errors import OutboxDamaged, OutboxError, OutboxFull
from weir_client.outbox import Outbox

MANY = 1_000


def bodies(outbox: Outbox) -> list[bytes]:
    return [body for _, body in outbox.oldest(MANY, 1 << 30)]


def test_appended_events_are_read_back_in_order(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox")
    outbox.append([b"1", b"2"])
    outbox.append([b"3"])
    assert bodies(Outbox(tmp_path / "outbox")) == [b"1", b"2", b"3"]
    outbox.remove([number for number, _ in outbox.oldest(2, MANY)])
    assert (bodies(Outbox(tmp_path / "outbox")), len(outbox)) == ([b"3"], 1)


def test_a_number_is_never_given_twice(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox")
    outbox.append([b"1"])
    outbox.remove([outbox.last()])
    outbox.append([b"2"])
    assert (outbox.first(), outbox.last()) == (2, 2)


def test_the_oldest_events_are_taken_up_to_the_limits_and_at_least_one(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox")
    outbox.append([b"x" * 100] * 5)
    assert len(outbox.oldest(3, MANY)) == 3
    assert len(outbox.oldest(5, 250)) == 2
    assert len(outbox.oldest(5, 1)) == 1


def test_a_full_outbox_refuses_all_of_a_call_and_has_room_again_once_events_have_left(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox", max_bytes=128 << 10)
    pair = [b"x" * 1_000, b"y" * 1_000]
    with pytest.raises(OutboxFull, match=r"is full: it has reached 131072 bytes, or the disk has no room"):
        _append_often(outbox, pair)
    kept = bodies(outbox)
    assert 80 < len(kept) < 128
    assert kept == pair * (len(kept) // 2)
    outbox.remove([number for number, _ in outbox.oldest(20, 1 << 20)])
    outbox.append([b"x" * 1_000])
    assert (tmp_path / "outbox").stat().st_size <= 128 << 10


def test_a_disk_that_takes_no_more_is_a_sentence_and_nothing_of_the_call_is_kept(tmp_path: Path) -> None:
    program = """
import resource, sys
from pathlib import Path
from weir_client.errors import OutboxError
from weir_client.outbox import Outbox
outbox = Outbox(Path(sys.argv[1]))
outbox.append([b"first"])
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
try:
    for _ in range(1_000):
        outbox.append([b"x" * 10_000])
except OutboxError as error:
    print(error)
    outbox.close()
"""
    command = [sys.executable, "-c", program, str(tmp_path / "outbox")]
    found = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ})
    assert found.stdout.startswith(f"The outbox {tmp_path / 'outbox'} ")
    assert "Traceback" not in found.stderr
    kept = bodies(Outbox(tmp_path / "outbox"))
    assert (kept[0], set(kept[1:])) == (b"first", {b"x" * 10_000})


def test_a_file_that_is_no_outbox_is_a_sentence_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "outbox"
    path.write_bytes(b"no database at all, " * 100)
    before = path.read_bytes()
    with pytest.raises(OutboxDamaged, match=r"is damaged, or not an outbox .*Move it away"):
        Outbox(path)
    assert path.read_bytes() == before


def test_a_damaged_outbox_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "outbox"
    outbox = Outbox(path)
    outbox.append([b"x" * 500] * 100)
    outbox.close()
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(OutboxDamaged, match=r"\.recover"):
        bodies(Outbox(path))


def test_a_folder_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(OutboxError, match="cannot be used: unable to open database file"):
        Outbox(tmp_path / "missing" / "outbox")


def test_an_outbox_of_a_later_release_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "outbox"
    outbox = Outbox(path)
    with outbox._database() as database:
        database.execute("PRAGMA user_version = 2")
    outbox.close()
    with pytest.raises(OutboxError, match="later release"):
        Outbox(path)


def test_one_process_sends_and_another_takes_over(tmp_path: Path) -> None:
    first, second = Outbox(tmp_path / "outbox"), Outbox(tmp_path / "outbox")
    assert (first.become_sender(), first.become_sender(), second.become_sender()) == (True, True, False)
    first.close()
    assert (second.become_sender(), first.become_sender()) == (True, False)


def test_a_sender_that_is_killed_is_followed_by_another(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox")
    program = (
        "import sys, time; from pathlib import Path; from weir_client.outbox import Outbox\n"
        "print(Outbox(Path(sys.argv[1])).become_sender(), flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "outbox")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        # The lock ends with the process; the object that held it was collected, or not.
        other.kill()
    assert outbox.become_sender()


def test_a_process_after_a_fork_appends_and_does_not_take_over_what_its_parent_sends(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox")
    outbox.append([b"parent"])
    assert outbox.become_sender()
    child = multiprocessing.get_context("fork").Process(target=_append_and_ask, args=(outbox,))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert bodies(outbox) == [b"parent", b"child"]
    assert not Outbox(tmp_path / "outbox").become_sender()


def _append_often(outbox: Outbox, bodies: list[bytes]) -> None:
    for _ in range(MANY):
        outbox.append(bodies)


def _append_and_ask(outbox: Outbox) -> None:
    outbox.append([b"child"])
    sys.exit(7 if outbox.become_sender() else 0)
