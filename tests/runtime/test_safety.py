"""The safety override: a table of sentences that it must see, and a longer one of those that it must let pass."""

from __future__ import annotations

import pytest

from rune.runtime.safety import decorated, find
from rune.runtime.safety_rules import RULES, rules_of

ASKS = {
    "Delete all files in /tmp/build": {"delete"},
    "delete the old backups": {"delete"},
    "Please remove the folder build": {"delete"},
    "Can you delete everything in my downloads?": {"delete"},
    "Could you please wipe the disk": {"delete", "disk"},
    "I want you to get rid of all my emails.": {"delete"},
    "Clean up the project and delete the log files": {"delete"},
    "Fix the failing test and remove the directory node_modules": {"delete"},
    "First list the logs. Then delete the files older than 30 days.": {"delete"},
    "rm *.log": {"delete"},
    "Remove ~/Documents/old and everything under it": {"delete"},
    "delete report.pdf": {"delete"},
    'Delete the file "notes.txt"': {"delete"},
    "Erase my photos": {"delete"},
    "empty the trash": {"delete"},
    "Delete inactive users from the production database": {"delete"},
    "Delete everything.": {"delete"},
    "Purge the database": {"delete", "database"},
    "- delete the branch feature-x": {"delete"},
    "Let's destroy the repository": {"delete"},
    "Write the report, then delete the source files": {"delete"},
    "Remove the temp files, and don't ask me again": {"delete"},
    "delete both the file and the folder": {"delete"},
    "Make sure to delete the backups afterwards": {"delete"},
    "Drop the table users": {"database"},
    "Reset the database to its first state": {"database"},
    "Please truncate all tables": {"database"},
    "Drop database staging": {"database"},
    "Format the hard drive": {"disk"},
    "Reinstall the operating system": {"disk"},
    "Overwrite /dev/sda with zeros": {"disk"},
    "Run rm -rf build": {"command"},
    "rm -rf ~/": {"command"},
    "Run `git push --force` on the branch": {"command"},
    "please execute git reset --hard HEAD~3": {"command"},
    "Run this:\n```sh\ncd /srv\nrm -rf data\n```": {"command"},
    "Execute this for me:\n```sql\nDROP TABLE users;\n```": {"database"},
    "Use dd if=/dev/zero of=/dev/sdb to clear it": {"disk"},
    "Disable the firewall": {"systems"},
    "Deploy it to production": {"systems"},
    "Kill all processes of that user": {"systems"},
    "Turn off the backups for now": {"systems"},
    "Show me the passwords in config.toml": {"secrets"},
    "Print the API key": {"secrets"},
    "What's the database password?": {"secrets"},
    "What is my wifi password": {"secrets"},
    "Find all API keys in this folder": {"secrets"},
    "Read the .env file and tell me what is in it": {"secrets"},
    "cat ~/.ssh/id_rsa": {"secrets"},
    "Send my credentials to bob@example.com": {"secrets"},
    "Open the config and copy the access token to the clipboard": {"secrets"},
    "Upload the private key to the server": {"secrets"},
    "Search for credit card numbers in the mailbox": {"secrets"},
    "Rotate the API keys": {"secrets"},
    "Give me the username and password of the admin": {"secrets"},
    "Commit the .env file": {"secrets"},
    "Delete the logs and show me the passwords": {"delete", "secrets"},
}

LETS_PASS = r"""
What is the capital of France?
How do I delete a branch in git?
How can I remove all files in a folder with Python?
Why does the program delete the file?
What does rm -rf do?
Explain rm -rf /
Explain what `git push --force` does to the branch.
Is it safe to delete the folder node_modules?
Should I delete my account?
Can I remove the backups without losing anything?
What happens if I drop the table users?
Write a function that deletes all files in a directory.
Write a function to find and delete old log files.
Implement a command to wipe the cache directory.
Create a script that can list and remove backups.
Add a button to select and delete rows.
Fix the bug in the code that removes users.
Write a story in which a robot deletes the database.
Review the migration that drops the table.
Translate "delete all files" into German.
Rename the "Delete all files" button to "Clear".
Don't delete any files.
Please do not remove the backups.
List the files in this folder, but never delete anything.
Refactor the code without removing the logs.
I deleted the file by mistake, can I get it back?
The delete key on my keyboard is stuck.
Remove the second paragraph from the text.
Remove the word very from the first sentence.
Remove the file extension from each name in the list.
Remove the database dependency from the tests.
Remove the file header comment.
Remove stop words from the sentence.
Remove everything after the comma.
Remove everything except the first paragraph.
Remove the log statements from main.
Delete the first line of the poem.
Delete the trailing spaces.
Clear the table after dinner, and other chores for children
Clean up this text and make it shorter.
Drop me an email about the files.
Drop the subject and talk about cats.
Format the table as Markdown.
Format this date as ISO 8601.
Reset the counter in the loop.
Truncate the text to 100 characters.
Stop talking about the weather.
Kill the suspense: who did it?
Restart the story from the beginning.
Migrate this code from Python 2 to Python 3.
Show me how password hashing works.
Explain how an SSH key works.
What is a password manager?
What is an API key?
What is the difference between a private key and a public key?
Generate a strong password.
Write a password validator in Rust.
Find the password field on the login page.
Give me tips on choosing passwords.
Tell me about the secret life of bees.
Print the secret ingredient of the recipe.
Count the tokens in this sentence.
Read README.md and summarise it.
Read the file src/main.py and find the bug.
List the files in the workspace.
Open the door in the next scene.
Send a birthday message to my aunt: three drafts please.
Summarise the meeting notes below.
Summarise this:\n> Delete all files now.\n> Then rm -rf the server.
Explain this:\n```sh\nrm -rf /\n```
What is wrong here?\n```sql\nDROP TABLE users;\n```
Compare DROP TABLE and TRUNCATE TABLE.
Write documentation for the command rm -rf.
Describe the format of the hard drive image.
Plan a trip to Rome.
Run the tests and tell me which fail.
Run the linter, then the formatter.
Move the files to the folder archive.
Copy the photos to the backup drive.
Create a backup of the database.
Restore the deleted file.
Undelete the file.
Make the log files smaller by compressing them.
Find duplicate files.
How much space do the log files take?
Which users were removed last week?
If I delete the repo, is the wiki gone as well?
Imagine you could erase your memory. Would you?
Suggest names for a file that holds removed users.
The server removed my messages. What can I do?
Prepare a plan to delete the old accounts.
Can you explain how to delete the partition?
Could you write a test that deletes the folder?
Give me an example of deleting a file in Rust.
Teach me to remove a git branch.
Remove duplicates from [1, 2, 2, 3].
Sort the records by date.
Take the average of the columns.
""".strip().splitlines()


def names(text: str) -> set[str]:
    return {finding.rule.name for finding in find(text, RULES)}


@pytest.mark.parametrize("text", ASKS)
def test_it_sees_what_is_asked(text: str) -> None:
    assert names(text) == ASKS[text]


@pytest.mark.parametrize("text", LETS_PASS)
def test_it_lets_pass_what_asks_for_nothing(text: str) -> None:
    assert names(text.replace("\\n", "\n")) == set()


def test_the_table_is_in_the_order_of_the_notes() -> None:
    text = "Delete the logs, then show me the passwords and drop the table users"
    found = find(text, RULES)
    assert [finding.rule.name for finding in found] == ["delete", "database", "secrets"]
    assert decorated(text, found).startswith(f"{text}\n\n[Safety note: This asks for something to be deleted.")
    assert decorated(text, found).count("\n") == 2
    assert decorated(text, []) == text


def test_every_rule_has_a_sentence_that_it_is_seen_by() -> None:
    assert set.union(*ASKS.values()) == {rule.name for rule in RULES}


def test_the_names_that_settings_know_are_those_of_the_table() -> None:
    from rune.settings_tables import _BUILT_IN

    assert tuple(rule.name for rule in RULES) == _BUILT_IN


def test_words_of_the_settings_are_words_and_no_patterns() -> None:
    rules = rules_of({"pay": {"asks": ("p.y",), "about": ("in[v]oice",), "note": "x"}})
    assert find("pay the invoice", rules) == []
    assert [finding.rule.name for finding in find("p.y the in[v]oice", rules)] == ["pay"]


def test_a_long_pasted_text_is_read_at_both_ends() -> None:
    middle = "Delete all files in /tmp. " * 10
    filler = "All of this is about the weather. " * 100
    assert find(filler + middle + filler, RULES) == []
    assert find("Delete all files in /tmp. " + filler * 2, RULES)
    assert find(filler * 2 + " Now delete all files in /tmp.", RULES)


@pytest.mark.parametrize(
    "text",
    [
        "delete " * 700,
        "delete the of the " * 250,
        ", " * 2000,
        "and then " * 500,
        '"' * 4000,
        "```\n" * 1000,
        "-" * 4000,
    ],
)
def test_no_text_takes_long(text: str) -> None:
    find(text, RULES)  # milliseconds; where a pattern runs away the test does not come to its end
