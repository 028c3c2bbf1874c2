"""The table of the safety override: which words ask for work that destroys or that touches secrets, and what is then said.

A rule holds when one of ``asks`` stands where a sentence asks for something, and one of ``about`` is what it asks it for. Words
are plain: no patterns. ``config.toml`` may switch a rule off, give it other words, or add one (``[safety_rules.NAME]``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

__all__ = ["RULES", "Rule", "rules_of"]


@dataclass(frozen=True, slots=True, eq=False)  # patterns are kept by the rule itself: comparing its words takes longer
class Rule:
    """One row of the table.

    Attributes:
        name: how the trace calls it.
        note: what the user's message is given to read at its end, a sentence or two.
        asks: verbs, as they stand in a request ("delete"); several words may make one ("get rid of").
        about: what the verb must be for. A path or a file's name counts wherever "file" does.
        owned: further words, for which the sentence must say whose or how many ("all", "my", "old", …).
        places: words that count wherever they stand behind the verb.
        commands: beginnings of command lines that count by themselves where the sentence says to run something.
    """

    name: str
    note: str
    asks: tuple[str, ...] = ()
    about: tuple[str, ...] = ()
    owned: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


RULES: tuple[Rule, ...] = (
    Rule(
        "delete",
        "This asks for something to be deleted. Name exactly what would be lost before you delete anything, delete nothing "
        "beyond what was named, and ask when it is not clear what is meant.",
        asks=_words(
            "delete, remove, erase, wipe, wipe out, purge, destroy, shred, rm, empty, clear, clear out, clean out, get rid of, "
            "trash, throw away, nuke, unlink"
        ),
        about=_words(
            "file, files, folder, folders, directory, directories, subfolders, backup, backups, repository, repo, repositories, "
            "branch, branches, bucket, buckets, volume, volumes, partition, partitions, disk, disks, hard disk, hard drive, "
            "drive, drives, database, databases, snapshots, trash, recycle bin, downloads, desktop, home, workspace, checkout, "
            "logs, mailbox, inbox, disk image"
        ),
        owned=_words(
            "data, records, rows, entries, messages, emails, mails, photos, pictures, documents, users, accounts, account, "
            "contacts, history, tables, containers, projects, project, notes, customers, contents, phone, laptop, machine"
        ),
        places=_words(
            "from production, from the production database, from disk, in production, from the live database"
        ),
    ),
    Rule(
        "database",
        "This asks for a change to a database that cannot be taken back. Say which database and which tables it touches, and "
        "whether there is a backup, before anything is run.",
        asks=_words("drop, truncate, reset, wipe, purge, flush, roll back, rollback, recreate, overwrite"),
        about=_words(
            "table, tables, database, databases, schema, collection, collections, index, indexes, column, columns"
        ),
        commands=_words("drop table, drop database, drop schema, truncate table"),
    ),
    Rule(
        "disk",
        "This asks for a disk or a device to be written over. Name the device, and do not run it on a guess.",
        asks=_words("format, reformat, repartition, overwrite, wipe, zero out, flash, reinstall, factory reset"),
        about=_words(
            "disk, disks, hard disk, drive, hard drive, drives, partition, partitions, usb stick, sd card, ssd, volume, laptop, "
            "operating system, computer, machine, phone, server"
        ),
        places=_words("/dev/sda, /dev/sdb, /dev/nvme0n1, /dev/disk"),
        commands=_words("mkfs, dd if=, dd of=, wipefs, fdisk, parted, format c:, diskutil erase"),
    ),
    Rule(
        "command",
        "This asks for a command that can do damage that cannot be undone. Say first what it would touch, and run it only with "
        "the paths that were named.",
        commands=_words(
            "rm -rf, rm -fr, rm -r, sudo rm, git push --force, git push -f, git reset --hard, git clean -f, git clean -d, "
            "git branch -d, chmod -r, chown -r, kill -9, killall, pkill, shutdown, reboot, rmdir /s, del /s, "
            "docker system prune, docker volume rm, kubectl delete, terraform destroy, aws s3 rm, aws s3 rb, :(){"
        ),
    ),
    Rule(
        "systems",
        "This asks for a change to a system that others may rely on. Say what stops working meanwhile, and how it is undone, "
        "before it is done.",
        asks=_words(
            "shut down, stop, kill, restart, reboot, disable, turn off, uninstall, terminate, deploy, migrate, release, "
            "force push, force-push"
        ),
        about=_words(
            "firewall, antivirus, backups, production, production server, live server, all services, all processes, all "
            "containers, every process, database server, vpn, disk encryption, two-factor authentication, main, master"
        ),
        places=_words("to production, in production, on production, to the live server, on the live server, to main"),
    ),
    Rule(
        "secrets",
        "This touches secrets. Use them where the task needs them, but do not write their values into an answer, a file or a "
        "message unless that very value was asked for, and send them nowhere.",
        asks=_words(
            "show, show me, print, read, list, send, email, mail, post, upload, share, give, tell, find, search for, look for, "
            "grep for, open, cat, dump, export, copy, extract, get, fetch, collect, decrypt, display, reveal, commit, push, "
            "rotate, store, save, what is, what's, what are, where is, where are, crack, steal, leak, paste, log"
        ),
        about=_words(
            "password, passwords, passphrase, passphrases, api key, api keys, secret key, secret keys, private key, private "
            "keys, ssh key, ssh keys, gpg key, signing key, access token, access tokens, auth token, bearer token, credentials, "
            "secrets, credit card number, credit card numbers, card numbers, seed phrase, recovery codes, keychain, login data, "
            ".env, .env file, id_rsa, .netrc, .pgpass, /etc/shadow, ~/.ssh, ~/.aws, ~/.gnupg, .npmrc, kubeconfig"
        ),
        places=_words(
            "id_rsa, id_ed25519, /etc/shadow, .aws/credentials, ~/.ssh, ~/.gnupg, .env file, the .env, .netrc"
        ),
    ),
)
"""The rules that are there without a setting, in the order in which their notes are given."""


def rules_of(settings: Mapping[str, Mapping[str, Any]]) -> tuple[Rule, ...]:
    """The table with what ``[safety_rules.NAME]`` says: other words for a rule, ``enabled = false``, or a rule of one's own."""
    known = {rule.name: rule for rule in RULES}
    names = {field.name for field in fields(Rule)} - {"name"}
    for name, given in settings.items():
        if given.get("enabled") is False:
            known.pop(name, None)
            continue
        values = {key: value for key, value in given.items() if key in names}
        known[name] = replace(known[name], **values) if name in known else Rule(name, **values)
    return tuple(known.values())
