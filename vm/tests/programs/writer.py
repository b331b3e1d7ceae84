"""Puts checkpoints in the four ways of the controls and acknowledges each; waits for a word before the next."""

import json
import os
import sqlite3
import sys
from pathlib import Path

root, count = sys.argv[1], int(sys.argv[2])
os.chdir(root)


def write(name, number, sync):
    with Path(name).open("wb") as file:
        file.write(b"%08d" % number * 512)
        file.flush()
        if sync:
            os.fsync(file.fileno())


def sync_folder():
    folder = os.open(".", os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def right(number):
    write("right.tmp", number, True)
    Path("right.tmp").rename("right")
    sync_folder()


def no_folder_sync(number):
    write("no_folder_sync.tmp", number, True)
    Path("no_folder_sync.tmp").rename("no_folder_sync")


def no_sync(number):
    write(f"no_sync{number}", number, False)


database = sqlite3.connect("wal.db", isolation_level=None)
database.execute("pragma journal_mode=wal")
database.execute("pragma synchronous=full")
database.execute("create table puts (number integer primary key, data blob)")
sync_folder()


def wal(number):
    database.execute("insert into puts values (?, ?)", (number, b"x" * 4000))


print("ready", flush=True)
for number in range(1, count + 1):
    for way in (right, no_folder_sync, no_sync, wal):
        sys.stdin.readline()
        way(number)
        print(json.dumps([way.__name__, number]), flush=True)
sys.stdin.readline()
