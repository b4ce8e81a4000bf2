"""the first ledger"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from workspace.tables import UtcDateTime

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


APPEND_ONLY = ("verdict", "review", "promotion", "event", "measurement", "evalrun", "modelcall")


def refuse(table: str, verb: str, dialect: str) -> list[str]:
    """Statements that make the database itself refuse to change evidence."""
    name = f"append_only_{table}_{verb.lower()}"
    message = f"{table} is append-only"
    if dialect == "sqlite":
        return [f"CREATE TRIGGER {name} BEFORE {verb} ON {table} BEGIN SELECT RAISE(ABORT, '{message}'); END"]
    if dialect == "postgresql":
        body = f"BEGIN RAISE EXCEPTION '{message}'; END"
        return [
            f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS '{body.replace(chr(39), chr(39) * 2)}'",
            f"CREATE TRIGGER {name} BEFORE {verb} ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()",
        ]
    return []


def upgrade() -> None:
    op.create_table(
        "artifact",
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("size_bytes", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_artifact")),
    )
    op.create_table(
        "budgetline",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("scope", sa.String(), nullable=False),
        sa.Column("resource", sa.String(), nullable=False),
        sa.Column("cap", sa.Float(), nullable=True),
        sa.Column("reserved", sa.Float(), nullable=False),
        sa.Column("spent", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_budgetline")),
        sa.UniqueConstraint("scope", "resource", name=op.f("uq_budgetline_scope")),
    )
    op.create_table(
        "night",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("profile", sa.String(), nullable=False),
        sa.Column("only", sa.JSON(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("seed", sa.String(), nullable=False),
        sa.Column("base_commit", sa.String(), nullable=False),
        sa.Column("settings_sha256", sa.String(), nullable=False),
        sa.Column("subject_id", sa.Integer(), nullable=True),
        sa.Column("fingerprint", sa.JSON(), nullable=False),
        sa.Column("summary", sa.JSON(), nullable=False),
        sa.Column("budget_wall_s", sa.Float(), nullable=False),
        sa.Column("starts", sa.Integer(), nullable=False),
        sa.Column("flow_run_id", sa.String(), nullable=True),
        sa.Column("started_at", UtcDateTime(), nullable=False),
        sa.Column("ended_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_night")),
    )
    op.create_table(
        "recipe",
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_recipe")),
    )
    op.create_table(
        "checkpoint",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("path", sa.String(), nullable=False),
        sa.Column("parent_id", sa.Integer(), nullable=True),
        sa.Column("dataset_id", sa.Integer(), nullable=True),
        sa.Column("night_id", sa.Integer(), nullable=True),
        sa.Column("recipe_sha256", sa.String(), nullable=True),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("licence", sa.String(), nullable=False),
        sa.Column("files", sa.JSON(), nullable=False),
        sa.Column("figures", sa.JSON(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["night_id"], ["night.id"], name=op.f("fk_checkpoint_night_id_night")),
        sa.ForeignKeyConstraint(["parent_id"], ["checkpoint.id"], name=op.f("fk_checkpoint_parent_id_checkpoint")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_checkpoint")),
        sa.UniqueConstraint("name", name=op.f("uq_checkpoint_name")),
    )
    op.create_table(
        "event",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("night_id", sa.Integer(), nullable=True),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("message", sa.String(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["night_id"], ["night.id"], name=op.f("fk_event_night_id_night")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_event")),
    )
    with op.batch_alter_table("event", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_event_night_id"), ["night_id"], unique=False)

    op.create_table(
        "reservation",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("line_id", sa.Integer(), nullable=False),
        sa.Column("amount", sa.Float(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("settled", sa.Float(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["line_id"], ["budgetline.id"], name=op.f("fk_reservation_line_id_budgetline")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reservation")),
    )
    with op.batch_alter_table("reservation", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_reservation_line_id"), ["line_id"], unique=False)

    op.create_table(
        "weakness",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("night_id", sa.Integer(), nullable=True),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("figures", sa.JSON(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["night_id"], ["night.id"], name=op.f("fk_weakness_night_id_night")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_weakness")),
    )
    with op.batch_alter_table("weakness", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_weakness_night_id"), ["night_id"], unique=False)

    op.create_table(
        "project",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("title", sa.String(), nullable=False),
        sa.Column("hypothesis", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("target", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("members", sa.JSON(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("eval_sha256", sa.String(), nullable=True),
        sa.Column("eval_figures", sa.JSON(), nullable=False),
        sa.Column("budget_wall_s", sa.Float(), nullable=True),
        sa.Column("weakness_id", sa.Integer(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("closed_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(["weakness_id"], ["weakness.id"], name=op.f("fk_project_weakness_id_weakness")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_project")),
    )
    op.create_table(
        "modelcall",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("night_id", sa.Integer(), nullable=True),
        sa.Column("project_id", sa.Integer(), nullable=True),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("endpoint", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("request_sha256", sa.String(), nullable=False),
        sa.Column("reply_sha256", sa.String(), nullable=True),
        sa.Column("seed", sa.String(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("error", sa.String(), nullable=True),
        sa.Column("tokens_in", sa.Integer(), nullable=False),
        sa.Column("tokens_out", sa.Integer(), nullable=False),
        sa.Column("usd", sa.Float(), nullable=False),
        sa.Column("latency_s", sa.Float(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["night_id"], ["night.id"], name=op.f("fk_modelcall_night_id_night")),
        sa.ForeignKeyConstraint(["project_id"], ["project.id"], name=op.f("fk_modelcall_project_id_project")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_modelcall")),
    )
    with op.batch_alter_table("modelcall", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_modelcall_night_id"), ["night_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_modelcall_request_sha256"), ["request_sha256"], unique=False)

    op.create_table(
        "proposal",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("night_id", sa.Integer(), nullable=True),
        sa.Column("project_id", sa.Integer(), nullable=True),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("target", sa.String(), nullable=False),
        sa.Column("slot", sa.String(), nullable=False),
        sa.Column("title", sa.String(), nullable=False),
        sa.Column("hypothesis", sa.String(), nullable=False),
        sa.Column("plan", sa.JSON(), nullable=False),
        sa.Column("author", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("level", sa.String(), nullable=True),
        sa.Column("branch", sa.String(), nullable=True),
        sa.Column("base_commit", sa.String(), nullable=True),
        sa.Column("head", sa.String(), nullable=True),
        sa.Column("candidate_id", sa.Integer(), nullable=True),
        sa.Column("checkpoint_id", sa.Integer(), nullable=True),
        sa.Column("merge_commit", sa.String(), nullable=True),
        sa.Column("flags", sa.JSON(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("changed_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["checkpoint_id"], ["checkpoint.id"], name=op.f("fk_proposal_checkpoint_id_checkpoint")
        ),
        sa.ForeignKeyConstraint(["night_id"], ["night.id"], name=op.f("fk_proposal_night_id_night")),
        sa.ForeignKeyConstraint(["project_id"], ["project.id"], name=op.f("fk_proposal_project_id_project")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_proposal")),
    )
    with op.batch_alter_table("proposal", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_proposal_night_id"), ["night_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_proposal_project_id"), ["project_id"], unique=False)

    op.create_table(
        "candidate",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("night_id", sa.Integer(), nullable=True),
        sa.Column("proposal_id", sa.Integer(), nullable=True),
        sa.Column("model_call_id", sa.Integer(), nullable=True),
        sa.Column("task", sa.String(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("move", sa.JSON(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["model_call_id"], ["modelcall.id"], name=op.f("fk_candidate_model_call_id_modelcall")),
        sa.ForeignKeyConstraint(["night_id"], ["night.id"], name=op.f("fk_candidate_night_id_night")),
        sa.ForeignKeyConstraint(["proposal_id"], ["proposal.id"], name=op.f("fk_candidate_proposal_id_proposal")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_candidate")),
        sa.UniqueConstraint("night_id", "task", "sha256", name=op.f("uq_candidate_night_id")),
    )
    with op.batch_alter_table("candidate", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_candidate_night_id"), ["night_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_candidate_proposal_id"), ["proposal_id"], unique=False)

    op.create_table(
        "dataset",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("night_id", sa.Integer(), nullable=True),
        sa.Column("project_id", sa.Integer(), nullable=True),
        sa.Column("proposal_id", sa.Integer(), nullable=True),
        sa.Column("checkpoint_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("target", sa.String(), nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.Column("parquet_sha256", sa.String(), nullable=False),
        sa.Column("manifest_sha256", sa.String(), nullable=False),
        sa.Column("recipe_sha256", sa.String(), nullable=False),
        sa.Column("figures", sa.JSON(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["checkpoint_id"], ["checkpoint.id"], name=op.f("fk_dataset_checkpoint_id_checkpoint")),
        sa.ForeignKeyConstraint(["night_id"], ["night.id"], name=op.f("fk_dataset_night_id_night")),
        sa.ForeignKeyConstraint(["project_id"], ["project.id"], name=op.f("fk_dataset_project_id_project")),
        sa.ForeignKeyConstraint(["proposal_id"], ["proposal.id"], name=op.f("fk_dataset_proposal_id_proposal")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dataset")),
    )
    op.create_table(
        "promotion",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("checkpoint_id", sa.Integer(), nullable=False),
        sa.Column("previous_id", sa.Integer(), nullable=True),
        sa.Column("proposal_id", sa.Integer(), nullable=True),
        sa.Column("by", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("override", sa.Boolean(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["checkpoint_id"], ["checkpoint.id"], name=op.f("fk_promotion_checkpoint_id_checkpoint")
        ),
        sa.ForeignKeyConstraint(["previous_id"], ["checkpoint.id"], name=op.f("fk_promotion_previous_id_checkpoint")),
        sa.ForeignKeyConstraint(["proposal_id"], ["proposal.id"], name=op.f("fk_promotion_proposal_id_proposal")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_promotion")),
    )
    op.create_table(
        "review",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("proposal_id", sa.Integer(), nullable=False),
        sa.Column("reviewer", sa.String(), nullable=False),
        sa.Column("decision", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("head", sa.String(), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["proposal_id"], ["proposal.id"], name=op.f("fk_review_proposal_id_proposal")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_review")),
    )
    with op.batch_alter_table("review", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_review_proposal_id"), ["proposal_id"], unique=False)

    op.create_table(
        "experiment",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("night_id", sa.Integer(), nullable=False),
        sa.Column("proposal_id", sa.Integer(), nullable=True),
        sa.Column("candidate_id", sa.Integer(), nullable=True),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("finishes", sa.Integer(), nullable=False),
        sa.Column("owner", sa.String(), nullable=True),
        sa.Column("heartbeat_at", UtcDateTime(), nullable=True),
        sa.Column("fingerprint", sa.JSON(), nullable=False),
        sa.Column("seeds", sa.JSON(), nullable=False),
        sa.Column("result", sa.JSON(), nullable=False),
        sa.Column("error", sa.String(), nullable=True),
        sa.Column("started_at", UtcDateTime(), nullable=True),
        sa.Column("ended_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(["candidate_id"], ["candidate.id"], name=op.f("fk_experiment_candidate_id_candidate")),
        sa.ForeignKeyConstraint(["night_id"], ["night.id"], name=op.f("fk_experiment_night_id_night")),
        sa.ForeignKeyConstraint(["proposal_id"], ["proposal.id"], name=op.f("fk_experiment_proposal_id_proposal")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_experiment")),
        sa.UniqueConstraint("night_id", "kind", "key", name=op.f("uq_experiment_night_id")),
    )
    with op.batch_alter_table("experiment", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_experiment_night_id"), ["night_id"], unique=False)

    op.create_table(
        "evalrun",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("night_id", sa.Integer(), nullable=True),
        sa.Column("experiment_id", sa.Integer(), nullable=True),
        sa.Column("checkpoint_id", sa.Integer(), nullable=False),
        sa.Column("eval", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("strict", sa.Float(), nullable=False),
        sa.Column("stderr", sa.Float(), nullable=False),
        sa.Column("lenient", sa.Float(), nullable=False),
        sa.Column("rows_sha256", sa.String(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["checkpoint_id"], ["checkpoint.id"], name=op.f("fk_evalrun_checkpoint_id_checkpoint")),
        sa.ForeignKeyConstraint(["experiment_id"], ["experiment.id"], name=op.f("fk_evalrun_experiment_id_experiment")),
        sa.ForeignKeyConstraint(["night_id"], ["night.id"], name=op.f("fk_evalrun_night_id_night")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_evalrun")),
    )
    with op.batch_alter_table("evalrun", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_evalrun_night_id"), ["night_id"], unique=False)

    op.create_table(
        "measurement",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("experiment_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("unit", sa.String(), nullable=False),
        sa.Column("samples_sha256", sa.String(), nullable=False),
        sa.Column("summary", sa.JSON(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiment.id"], name=op.f("fk_measurement_experiment_id_experiment")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_measurement")),
    )
    with op.batch_alter_table("measurement", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_measurement_experiment_id"), ["experiment_id"], unique=False)

    op.create_table(
        "verdict",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("night_id", sa.Integer(), nullable=True),
        sa.Column("experiment_id", sa.Integer(), nullable=True),
        sa.Column("proposal_id", sa.Integer(), nullable=True),
        sa.Column("candidate_id", sa.Integer(), nullable=True),
        sa.Column("decision", sa.String(), nullable=False),
        sa.Column("level", sa.String(), nullable=True),
        sa.Column("judge_sha256", sa.String(), nullable=False),
        sa.Column("figures", sa.JSON(), nullable=False),
        sa.Column("supersedes_id", sa.Integer(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["candidate_id"], ["candidate.id"], name=op.f("fk_verdict_candidate_id_candidate")),
        sa.ForeignKeyConstraint(["experiment_id"], ["experiment.id"], name=op.f("fk_verdict_experiment_id_experiment")),
        sa.ForeignKeyConstraint(["night_id"], ["night.id"], name=op.f("fk_verdict_night_id_night")),
        sa.ForeignKeyConstraint(["proposal_id"], ["proposal.id"], name=op.f("fk_verdict_proposal_id_proposal")),
        sa.ForeignKeyConstraint(["supersedes_id"], ["verdict.id"], name=op.f("fk_verdict_supersedes_id_verdict")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_verdict")),
    )
    with op.batch_alter_table("verdict", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_verdict_night_id"), ["night_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_verdict_proposal_id"), ["proposal_id"], unique=False)

    for table in APPEND_ONLY:
        for verb in ("UPDATE", "DELETE"):
            for statement in refuse(table, verb, op.get_bind().dialect.name):
                op.execute(statement)


def downgrade() -> None:
    with op.batch_alter_table("verdict", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_verdict_proposal_id"))
        batch_op.drop_index(batch_op.f("ix_verdict_night_id"))

    op.drop_table("verdict")
    with op.batch_alter_table("measurement", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_measurement_experiment_id"))

    op.drop_table("measurement")
    with op.batch_alter_table("evalrun", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_evalrun_night_id"))

    op.drop_table("evalrun")
    with op.batch_alter_table("experiment", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_experiment_night_id"))

    op.drop_table("experiment")
    with op.batch_alter_table("review", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_review_proposal_id"))

    op.drop_table("review")
    op.drop_table("promotion")
    op.drop_table("dataset")
    with op.batch_alter_table("candidate", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_candidate_proposal_id"))
        batch_op.drop_index(batch_op.f("ix_candidate_night_id"))

    op.drop_table("candidate")
    with op.batch_alter_table("proposal", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_proposal_project_id"))
        batch_op.drop_index(batch_op.f("ix_proposal_night_id"))

    op.drop_table("proposal")
    with op.batch_alter_table("modelcall", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_modelcall_request_sha256"))
        batch_op.drop_index(batch_op.f("ix_modelcall_night_id"))

    op.drop_table("modelcall")
    op.drop_table("project")
    with op.batch_alter_table("weakness", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_weakness_night_id"))

    op.drop_table("weakness")
    with op.batch_alter_table("reservation", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_reservation_line_id"))

    op.drop_table("reservation")
    with op.batch_alter_table("event", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_event_night_id"))

    op.drop_table("event")
    op.drop_table("checkpoint")
    op.drop_table("recipe")
    op.drop_table("night")
    op.drop_table("budgetline")
    op.drop_table("artifact")
