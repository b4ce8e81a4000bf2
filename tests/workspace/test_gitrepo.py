"""Git behind one module: proposals from worktrees, merges that cannot surprise, hooks and odd refs that do nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from workspace.errors import UserError
from workspace.gitrepo import GitRepo, MergeConflict, checked_path, checked_ref


@pytest.fixture
def repo(tmp_path: Path) -> GitRepo:
    root = tmp_path / "lab"
    made = GitRepo.init(root)
    (root / "kernels").mkdir()
    (root / "kernels" / "kernel.py").write_text("a = 1\nb = 2\n")
    (root / ".gitignore").write_text(".nightshift/\n")
    made.commit_files(["kernels/kernel.py", ".gitignore"], "Start\n")
    return made


def git(repo: GitRepo, *arguments: str) -> str:
    """The independent answer: git itself."""
    done = subprocess.run(["git", *arguments], cwd=repo.root, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def propose(repo: GitRepo, text: bytes, branch: str = "proposal/1-x") -> str:
    return repo.commit_on_branch(branch, repo.head(), {"kernels/kernel.py": text}, "Title\n\nNightshift-Proposal: 1\n")


def test_a_proposal_is_one_commit_on_its_branch(repo: GitRepo) -> None:
    base = repo.head()
    head = propose(repo, b"a = 1\nb = 3\n")
    assert git(repo, "rev-parse", "proposal/1-x") == head
    assert git(repo, "rev-parse", f"{head}^") == base == git(repo, "rev-parse", "main")
    assert git(repo, "show", f"{head}:kernels/kernel.py") == "a = 1\nb = 3"
    assert repo.diff_stat(base, head) == {"kernels/kernel.py": (1, 1)}
    assert git(repo, "worktree", "list").count("\n") == 0
    assert git(repo, "status", "--porcelain") == ""


def test_the_same_proposal_again_is_the_same_commit(repo: GitRepo) -> None:
    assert propose(repo, b"a = 9\n") == propose(repo, b"a = 9\n")
    with pytest.raises(UserError, match="other content"):
        propose(repo, b"a = 8\n")


def test_merge_binds_to_the_reviewed_commit(repo: GitRepo) -> None:
    head = propose(repo, b"a = 1\nb = 3\n")
    with pytest.raises(UserError, match="approve again"):
        repo.merge("proposal/1-x", "0" * 40, "Merge\n")
    merged = repo.merge("proposal/1-x", head, "Merge it\n\nNightshift-Merge: 1\n")
    assert git(repo, "rev-parse", "main") == merged
    assert git(repo, "rev-list", "--count", f"{merged}^1..{merged}") == "2"
    assert repo.find_trailer("Nightshift-Merge", "1") == merged
    assert repo.find_trailer("Nightshift-Merge", "2") is None


def test_a_conflict_leaves_the_tree_as_it_was(repo: GitRepo) -> None:
    head = propose(repo, b"a = 1\nb = 3\n")
    (repo.root / "kernels" / "kernel.py").write_text("a = 1\nb = 7\n")
    before = repo.commit_files(["kernels/kernel.py"], "Other\n")
    with pytest.raises(MergeConflict):
        repo.merge("proposal/1-x", head, "Merge\n")
    assert repo.head() == before
    assert git(repo, "status", "--porcelain") == ""


def test_a_dirty_tree_is_not_merged_over(repo: GitRepo) -> None:
    head = propose(repo, b"a = 1\nb = 3\n")
    (repo.root / "kernels" / "kernel.py").write_text("mine\n")
    with pytest.raises(UserError, match="uncommitted"):
        repo.merge("proposal/1-x", head, "Merge\n")
    assert (repo.root / "kernels" / "kernel.py").read_text() == "mine\n"


def test_a_merge_that_was_killed_is_taken_back(repo: GitRepo) -> None:
    head = propose(repo, b"a = 1\nb = 3\n")
    before = repo.head()
    git(repo, "merge", "--no-ff", "--no-commit", "-q", head)  # what a kill inside git leaves: MERGE_HEAD, staged files
    (repo.root / ".nightshift" / "merging").touch()
    merged = repo.merge("proposal/1-x", head, "Merge\n")
    assert git(repo, "rev-parse", f"{merged}^1") == before
    assert git(repo, "status", "--porcelain") == ""


def test_identity_is_what_git_says(repo: GitRepo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Grace Tester")
    monkeypatch.setenv("GIT_AUTHOR_EMAIL", "grace@example.org")
    assert repo.identity() == "Grace Tester <grace@example.org>"


def test_no_identity_names_the_remedy(repo: GitRepo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for name in ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "EMAIL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "empty"))
    with pytest.raises(UserError, match="who you are"):
        repo.identity()


def test_hooks_do_not_run(repo: GitRepo, tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    for name in ("pre-commit", "post-commit", "post-checkout", "pre-merge-commit", "post-merge", "commit-msg"):
        hook = repo.root / ".git" / "hooks" / name
        hook.write_text(f"#!/bin/sh\ntouch {witness}\n")
        hook.chmod(0o755)
    repo.merge("proposal/1-x", propose(repo, b"a = 5\n"), "Merge\n")
    assert not witness.exists()


def test_what_a_killed_run_left_is_removed(repo: GitRepo) -> None:
    left = repo.root / ".nightshift" / "worktrees" / "proposal-9-x"
    git(repo, "worktree", "add", "-q", "-b", "proposal/9-x", str(left))
    (repo.root / ".git" / "index.lock").touch()
    assert set(repo.delete_worktrees()) == {"proposal-9-x", "index.lock"}
    assert git(repo, "worktree", "list").count("\n") == 0
    propose(repo, b"a = 2\n", "proposal/9-x")  # the branch was left at the base: the commit is made now


@pytest.mark.parametrize("name", ["--output=x", "-b", "a..b", "a b", "x.lock", "", "a/../b", "$(id)", "a\n"])
def test_odd_refs_are_refused(name: str) -> None:
    with pytest.raises(UserError):
        checked_ref(name)


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", ".git/config", "a/.gitmodules", ".gitattributes", ""])
def test_odd_paths_are_refused(path: str) -> None:
    with pytest.raises(UserError):
        checked_path(path)
