"""All of git behind one module: hooks off, refs from an allow-list, a model's text never on a command line.

Raw ``repo.git.*`` calls pass options through, so every argument here is either a constant of ours, a commit id, a
checked ref or a checked path; messages go through a file.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from git import Actor, GitCommandError, InvalidGitRepositoryError, NoSuchPathError, Repo

from workspace.errors import SurroundingsError, UserError
from workspace.lock import exclusive

REF = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")
COMMIT = re.compile(r"[0-9a-f]{40}")
NIGHTSHIFT = Actor("Nightshift", "nightshift@localhost")
# Files of the user's or system's configuration may start programs; these switch off the ways that a repository can.
QUIET = {"GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "1", "GIT_OPTIONAL_LOCKS": "0"}
SAFE = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "commit.gpgSign=false", "-c", "gc.auto=0")


class MergeConflict(UserError):
    """The branch no longer merges cleanly; the tree is as it was before."""


def checked_ref(name: str) -> str:
    """``name`` if it is a plain branch name of ours; UserError otherwise."""
    if not REF.fullmatch(name) or ".." in name or name.endswith((".lock", ".")) or len(name) > 200:
        raise UserError("not a branch name", field="ref", value=name, allowed="letters, digits and ._-/")
    return name


def checked_path(path: str) -> str:
    """A relative path inside the work tree that touches nothing of git's; UserError otherwise."""
    parts = Path(path).parts
    if not parts or Path(path).is_absolute() or ".." in parts or any(part.lower().startswith(".git") for part in parts):
        raise UserError("not a path inside the lab", field="path", value=path)
    return path


def _held_open(path: Path) -> bool:
    """Whether any process that we may look at has the file open (git keeps its index.lock open while it lives)."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if link.readlink() == path:
                return True
        except OSError:  # the process ended, or is not ours to look at
            continue
    return False


class GitRepo:
    """One repository. Methods raise SurroundingsError when git itself is not as needed."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextmanager
    def _open(self) -> Iterator[Repo]:
        try:
            with Repo(self.root) as repo:
                repo.git.update_environment(**QUIET)
                yield repo
        except (InvalidGitRepositoryError, NoSuchPathError) as error:
            raise SurroundingsError(
                f"{self.root} is not a git repository", remedy="make a lab with: nightshift init DIR"
            ) from error

    def _run(self, repo: Repo, *arguments: str) -> str:
        """Run ``git SAFE arguments``; only this function builds a command line."""
        return str(repo.git.execute(["git", *SAFE, *arguments]))

    @staticmethod
    def init(root: Path) -> GitRepo:
        """Make a repository whose first branch is ``main``."""
        Repo.init(root, initial_branch="main").close()
        return GitRepo(root)

    def identity(self) -> str:
        """``Name <email>`` of the person at this machine, from git's settings or environment; UserError without one."""
        with self._open() as repo:
            try:
                found = self._run(repo, "-c", "user.useConfigOnly=true", "var", "GIT_AUTHOR_IDENT")
            except GitCommandError:
                found = ""
        person = re.match(r"(.+ <.+>) \d+ [+-]\d{4}", found)
        if person is None:
            raise UserError(
                "git does not know who you are",
                field="user.name, user.email",
                remedy='git config --global user.name "…" and git config --global user.email "…"',
            )
        return person[1]

    def head(self) -> str:
        with self._open() as repo:
            return repo.head.commit.hexsha

    def is_clean(self) -> bool:
        """No staged or changed tracked file (untracked files do not count)."""
        with self._open() as repo:
            return not repo.is_dirty(untracked_files=False)

    def commit_files(self, paths: list[str], message: str) -> str:
        """Commit these paths of the work tree on the current branch, as Nightshift."""
        with self._open() as repo, self._locked():
            repo.index.add([path if path == ".gitignore" else checked_path(path) for path in paths])
            return repo.index.commit(message, author=NIGHTSHIFT, committer=NIGHTSHIFT, skip_hooks=True).hexsha

    def read_file(self, commit: str, path: str) -> bytes:
        """A file as it was at ``commit``; KeyError if there is none."""
        with self._open() as repo:
            blob = repo.commit(self._checked_commit(repo, commit)).tree / checked_path(path)
            data: bytes = blob.data_stream.read()
            return data

    def list_files(self, commit: str, folder: str) -> list[str]:
        """Paths of the regular files below ``folder`` at ``commit``; links and submodules are left out."""
        with self._open() as repo:
            commit = self._checked_commit(repo, commit)
            lines = self._run(repo, "ls-tree", "-r", "-z", commit, "--", checked_path(folder)).split("\0")
            entries = [line.split("\t", 1) for line in lines if "\t" in line]
            return sorted(path for about, path in entries if about.startswith(("100644 blob", "100755 blob")))

    def branch_head(self, branch: str) -> str | None:
        """The commit a branch stands at, or None."""
        with self._open() as repo:
            name = checked_ref(branch)
            return repo.heads[name].commit.hexsha if name in [head.name for head in repo.heads] else None

    def commit_on_branch(self, branch: str, base: str, files: Mapping[str, bytes], message: str) -> str:
        """Commit ``files`` on a new branch from its own worktree, which is removed again; returns the commit.

        If the branch is there with one commit of the same content on the same base (a run that was killed after the
        commit), that commit is returned and nothing is made twice.
        """
        name = checked_ref(branch)
        with self._open() as repo, self._locked():
            base = self._checked_commit(repo, base)
            if name in [head.name for head in repo.heads]:
                commit = repo.heads[name].commit
                same = [parent.hexsha for parent in commit.parents] == [base] and all(
                    (commit.tree / checked_path(path)).data_stream.read() == data for path, data in files.items()
                )
                if same:
                    return commit.hexsha
                if commit.hexsha != base:
                    raise UserError("the branch exists with other content", field="branch", value=name)
            tree = self.root / ".nightshift" / "worktrees" / name.replace("/", "-")
            self._remove_worktree(repo, tree)
            self._run(repo, "worktree", "add", "--quiet", "-B", name, str(tree), base)
            try:
                for path, data in files.items():
                    target = tree / checked_path(path)
                    if target.is_symlink() or any(parent.is_symlink() for parent in target.parents if parent != tree):
                        raise UserError("a link is in the way", field="path", value=path)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(data)
                with Repo(tree) as work:
                    work.index.add(list(files))
                    return work.index.commit(message, author=NIGHTSHIFT, committer=NIGHTSHIFT, skip_hooks=True).hexsha
            finally:
                self._remove_worktree(repo, tree)

    def merge(self, branch: str, expected: str, message: str) -> str:
        """Merge a branch that must stand at ``expected`` into the checked-out branch; returns the merge commit.

        UserError for a moved branch or a dirty tree, MergeConflict (tree restored) when it does not merge.
        """
        name = checked_ref(branch)
        with self._open() as repo, self._locked():
            self._undo_dead_merge(repo)
            found = repo.heads[name].commit.hexsha if name in [head.name for head in repo.heads] else None
            if found != expected:
                raise UserError(
                    f"the branch stands at {found}, the review was of {expected}",
                    field="branch", value=name, remedy="look at the diff and approve again",
                )  # fmt: skip
            if repo.is_dirty(untracked_files=False):
                raise UserError("the lab has uncommitted changes", field="lab", remedy="commit or stash them first")
            who = ("-c", f"user.name={NIGHTSHIFT.name}", "-c", f"user.email={NIGHTSHIFT.email}")
            self._merging.touch()
            try:
                with tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix="nightshift-merge-") as file:
                    file.write(message)
                    file.flush()
                    self._run(repo, *who, "merge", "--no-ff", "--no-verify", "--quiet", "-F", file.name, expected)
            except GitCommandError as error:
                if (Path(repo.git_dir) / "MERGE_HEAD").exists():
                    self._run(repo, "merge", "--abort")
                self._merging.unlink()
                raise MergeConflict(
                    "the branch does not merge cleanly any more", field="branch", value=name,
                    remedy="request changes: the next night proposes it again on the new base",
                ) from error  # fmt: skip
            self._merging.unlink()
            return repo.head.commit.hexsha

    def find_trailer(self, trailer: str, value: str, limit: int = 2000) -> str | None:
        """The newest commit of the current branch whose message has the line ``trailer: value``."""
        with self._open() as repo:
            line = f"{trailer}: {value}"
            for commit in repo.iter_commits(max_count=limit):
                if line in str(commit.message).splitlines():
                    return commit.hexsha
            return None

    def message(self, commit: str) -> str:
        with self._open() as repo:
            return str(repo.commit(self._checked_commit(repo, commit)).message)

    def diff(self, base: str, head: str) -> str:
        """Unified diff between two commits."""
        with self._open() as repo:
            base, head = self._checked_commit(repo, base), self._checked_commit(repo, head)
            return self._run(repo, "diff", "--no-color", "--no-ext-diff", "--no-textconv", base, head, "--")

    def diff_stat(self, base: str, head: str) -> dict[str, tuple[int, int]]:
        """Lines added and removed per path."""
        with self._open() as repo:
            base, head = self._checked_commit(repo, base), self._checked_commit(repo, head)
            text = self._run(repo, "diff", "--numstat", "--no-ext-diff", "--no-textconv", base, head, "--")
        rows = (line.split("\t") for line in text.splitlines())
        return {path: (int(added), int(removed)) for added, removed, path in rows if added != "-"}

    def delete_worktrees(self) -> list[str]:
        """Remove what a killed run left: worktrees below .nightshift, and stale index locks of dead processes."""
        removed = []
        with self._open() as repo, self._locked():
            for tree in sorted((self.root / ".nightshift" / "worktrees").glob("*")):
                self._remove_worktree(repo, tree)
                removed.append(tree.name)
            lock = Path(repo.git_dir) / "index.lock"
            if lock.exists() and not _held_open(lock):
                lock.unlink()
                removed.append(lock.name)
            if self._undo_dead_merge(repo):
                removed.append("unfinished merge")
        return removed

    @property
    def _merging(self) -> Path:
        """There while a merge of ours runs; left behind only by one that was killed."""
        return self.root / ".nightshift" / "merging"

    def _undo_dead_merge(self, repo: Repo) -> bool:
        """Take back what a killed merge of ours left in index and tree (which were clean before it)."""
        if not self._merging.exists():
            return False
        lock = Path(repo.git_dir) / "index.lock"
        if lock.exists() and not _held_open(lock):
            lock.unlink()
        self._run(repo, "reset", "--quiet", "--merge", "HEAD")
        self._merging.unlink()
        return True

    def _remove_worktree(self, repo: Repo, tree: Path) -> None:
        shutil.rmtree(tree, ignore_errors=True)
        self._run(repo, "worktree", "prune")

    def _checked_commit(self, repo: Repo, commit: str) -> str:
        if not COMMIT.fullmatch(commit):
            raise UserError("not a full commit id", field="commit", value=commit)
        return str(repo.commit(commit).hexsha)

    def _locked(self) -> Any:
        return exclusive(self.root / ".nightshift" / "git.lock", "a git operation of nightshift", wait_s=60)
