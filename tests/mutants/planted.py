"""The bugs, each with the tests that must go red."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A bug: `sound` stands in `file` once, and `broken` takes its place. `caught_by`: tests that are red then."""

    name: str
    file: str
    sound: str
    broken: str
    caught_by: tuple[str, ...]


OWNERSHIP = "jobs/runtime/postgres/ownership.py"
DELTA = "jobs/runtime/delta/table.py"
REJOINING = "metering/rejoining.py"
POSTGRES_SINK = "jobs/runtime/postgres/sink.py"
OF_SINK = "tests/streaming/test_postgres_sink.py"
OF_OWNERSHIP = "tests/streaming/test_ownership.py"
OF_USAGE = "tests/streaming/test_usage_sink.py"
OF_IDENTITIES = "tests/rules/test_identity_index.py"
OF_REPLAYS = "tests/rules/test_replays.py"
OF_BILLING = "tests/pipelines/test_billing.py"
OF_DECIDING = "tests/pipelines/test_deciding.py"
OF_HOLDING = "tests/pipelines/test_holding.py"
OF_OUTBOX = "tests/pipelines/test_outbox.py"
OF_PUBLISHING = "tests/streaming/test_publishing.py"
OF_REBUILDS = "tests/pipelines/test_rebuild.py"
OF_COMMITS = "tests/pipelines/test_own_commits.py"
OF_CORRECTIONS = "tests/pipelines/test_corrections.py"
OF_AUDIT = "tests/pipelines/test_audit_appends.py"
OF_AUDITS_WHENEVER = "tests/pipelines/test_audit_whenever.py"
OF_RESTATED = "tests/pipelines/test_audit_restated.py"
OF_PRICE_MODELS = "tests/rules/test_price_models.py"
BY_ORDER_OF_PRICES = "test_oracle_the_model_itself_then_the_longest_prefix_and_within_it_one_name_then_most_conditions"
OF_PRICES_WITH_CONDITIONS = "tests/pipelines/test_prices_with_conditions.py"
OF_AUDIT_RULES = "tests/rules/test_audit_rules.py"
OF_CALENDAR = "tests/pipelines/test_one_calendar.py"
OF_REJOINING = "tests/rules/test_rejoining.py"
OF_AUDIT_PAIRS = "tests/pipelines/test_audit_pairs.py::test_an_abandoned_request_is_billed_once_to_the_answered_one"
BY_THE_RULE = "test_differential_abandoned_requests_are_rejoined_by_rule_and_first_receipt"
OF_SESSIONS = "tests/pipelines/test_sessionization.py"
OF_ROLLED_UP = "tests/pipelines/test_rolled_up.py"
OF_CHECKED_PRICES = "tests/pipelines/test_prices_checked.py"
OF_ACCOUNTS = "tests/pipelines/test_account_history.py"
CONTAINMENT = "jobs/joins/containment.py"
OF_CONTAINMENT = "tests/rules/test_containment.py"
OF_CONTAINED_STRAGGLERS = "tests/pipelines/test_contained_stragglers.py"
OF_CONDITIONS = "tests/rules/test_conditions.py"
OF_PERIODS = "tests/pipelines/test_audit_members.py"
BY_ITS_MEMBERS = "test_a_set_is_billed_in_any_order_of_receipt"
OF_MEMBERS_BILLED = "tests/pipelines/test_members_billed.py"
OF_MEMBER_CORRECTIONS = "tests/pipelines/test_member_corrections.py"
OF_PERIODS_READ = "tests/pipelines/test_periods_read.py"
OF_MEMBERS_FOLDED = "tests/pipelines/test_members_folded.py"
PRICE_TIERS, PLAN_TERMS = "metering/price_tiers.py", "metering/plan_terms.py"
CORRECTIONS_OF_LINES = "metering/invoices.py"
OF_TIERS, OF_PLAN_TERMS = "tests/rules/test_price_tiers.py", "tests/rules/test_plan_terms.py"
OF_INVOICES = "tests/rules/test_invoices.py"
VERIFICATION = "metering/invoice_verification.py"
OF_EVENTS = f"{OF_INVOICES}::test_exchanged_missing_and_changed_events_are_named"
BY_TAKING_BACK = f"{OF_INVOICES}::test_a_correction_that_takes_back_anything_but_the_line_that_it_names_is_named"
OF_NEGATION = "((line.quantity, known.quantity), (line.amount, known.amount), (line.residual, known.residual))"
BY_ITS_PART = "test_each_version_prices_the_units_on_its_part_of_the_ladder"
SUMMED_ONCE = "test_after_any_changes_all_lines_of_a_key_sum_to_its_exact_total_rounded_once"
BY_DAYS = "test_fees_are_prorated_by_the_days_that_an_account_has_the_plan"
ACCOUNT_HISTORY = "jobs/runtime/postgres/migrations/versions/0036_accounts_as_they_were.py"
POOLS = "jobs/runtime/postgres/migrations/versions/0132_pools.py"
OF_SHARES, OF_POOLS = "tests/rules/test_pools.py", "tests/pipelines/test_pools.py"

MUTANTS = (
    Mutant(
        "units stay with the meter that counts them, too",
        CONTAINMENT,
        'quantity=pl.col("quantity") - pl.col("part")',
        'quantity=pl.col("quantity")',
        (f"{OF_CONTAINMENT}::test_cached_tokens_with_a_price_leave_the_input_tokens",),
    ),
    Mutant(
        "units leave each meter that counts them, too, and not the nearest with a price",
        CONTAINMENT,
        '        .unique(["row", "meter"], keep="first", maintain_order=True)\n',
        "",
        (f"{OF_CONTAINMENT}::test_each_unit_is_billed_by_the_innermost_meter_with_a_price_and_by_no_other",),
    ),
    Mutant(
        "units leave without a look at the convention",
        CONTAINMENT,
        "if whole.sums in columns:",
        "if whole.sums is not None:",
        (f"{OF_CONTAINMENT}::test_a_source_that_counts_beside_has_both_quantities_billed",),
    ),
    Mutant(
        "two meters of one column take its units from the whole twice",
        CONTAINMENT,
        '        .unique(["row", "whole", "column"], keep="any")\n',
        "",
        (f"{OF_CONTAINMENT}::test_a_part_that_two_meters_add_up_leaves_the_whole_once",),
    ),
    Mutant(
        "a straggler whose rest has no price is free",
        "jobs/billing/fold.py",
        "bool_and(coalesce(price_version <= {BILLED_AS_PART}, false))",
        "bool_and(price_version <= {BILLED_AS_PART})",
        (f"{OF_CONTAINED_STRAGGLERS}::test_a_straggler_with_an_unpriced_rest_waits_for_a_price",),
    ),
    Mutant(
        "a meter looks at all outcomes, whatever its conditions are",
        "jobs/joins/quantities.py",
        "rows.filter(has_one & is_counted(meter))",
        "rows.filter(has_one)",
        (f"{OF_CONDITIONS}::test_differential_a_meter_has_the_outcomes_that_plain_python_gives_it",),
    ),
    Mutant(
        "epoch not checked, in Postgres",
        OWNERSHIP,
        "if row is None or row[0] != self.epoch:",
        "if row is None:",
        (f"{OF_OWNERSHIP}::test_a_newer_epoch_fences_a_driver_with_a_live_session",),
    ),
    Mutant(
        "epoch not checked, in Delta",
        DELTA,
        "self._watched = [self._epoch, LSN]",
        "self._watched = [LSN]",
        ("tests/streaming/test_delta_writer.py::test_an_older_driver_that_wakes_up_cannot_commit",),
    ),
    Mutant(
        "position not moved",
        POSTGRES_SINK,
        "            self._move(cursor, after, frontier)\n            self._record",
        "            self._record",
        ("tests/streaming/test_postgres_sink.py::test_a_batch_and_its_position_arrive_together",),
    ),
    Mutant(
        "position moved before the data",
        POSTGRES_SINK,
        "            stage(cursor, self._job.staged, summary.staged)\n",
        "            self._move(cursor, after, frontier)\n        with self._ownership.transaction() as cursor:\n"
        "            stage(cursor, self._job.staged, summary.staged)\n",
        ("tests/streaming/test_postgres_sink.py::test_a_failure_inside_the_fold_leaves_nothing_behind",),
    ),
    Mutant(
        "contiguity not checked",
        "jobs/runtime/batch.py",
        "    if not seen.proves(position):\n        twice",
        "    if False:\n        twice",
        ("tests/streaming/test_postgres_sink.py::test_a_batch_that_would_leave_a_gap_is_refused",),
    ),
    Mutant(
        "FOR SHARE left out",
        OWNERSHIP,
        "WHERE job = %s FOR SHARE",
        "WHERE job = %s",
        (f"{OF_OWNERSHIP}::test_the_epoch_does_not_change_under_a_transaction_that_has_checked_it",),
    ),
    Mutant(
        "old backend not ended",
        OWNERSHIP,
        "        connection.execute(_END_PREDECESSOR, [round(SESSION_ENDS_WITHIN_SECONDS * 1_000), job])\n",
        "        connection.execute(\"SET lock_timeout = '5s'\")\n",
        (f"{OF_OWNERSHIP}::test_a_driver_frozen_inside_a_transaction_does_not_hold_up_its_successor",),
    ),
    Mutant(
        "F as maximum over partitions",
        "jobs/ingestion/received.py",
        "slowest = min(self._latest",
        "slowest = max(self._latest",
        ("tests/rules/test_received.py::test_nothing_is_received_before_a_frontier_that_was_reached",),
    ),
    Mutant(
        "F of half a commit",
        "jobs/joins/frontier.py",
        "is_held = pl.lit(ends_table) |",
        "is_held = pl.lit(True) |",
        (
            "tests/rules/test_joins_frontier.py::test_the_frontier_of_a_cut_is_that_of_a_whole_commit",
            f"{OF_USAGE}::test_a_cut_inside_a_commit_abandons_no_row_with_a_partner_behind_it",
        ),
    ),
    Mutant(
        "running maximum left out",
        "jobs/ingestion/received.py",
        'stamp.cum_max().over("partition")',
        "stamp",
        ("tests/rules/test_received.py::test_oracle_any_batches_equal_a_fold_record_by_record",),
    ),
    Mutant(
        "table's identity not compared",
        "jobs/runtime/delta/upstream.py",
        "if stored.table not in (None, table):",
        "if stored.table is None and not table:",
        ("tests/streaming/test_upstream.py::test_a_position_in_another_table_is_refused_however_long_the_table_is",),
    ),
    Mutant(
        "repeat beyond the exact hour forgotten",
        "jobs/ingestion/identity_index.py",
        "it is read when needed.\n            segment.drop()",
        "it is read when needed.\n            del self._segments[segment.number]",
        (f"{OF_IDENTITIES}::test_identities_after_the_exact_hour_are_found_until_the_horizon",),
    ),
    Mutant(
        "what a dead letter may repeat forgotten beyond the horizon",
        "jobs/ingestion/identity_index.py",
        "microseconds_of(frontier):\n                    segment.drop()",
        "microseconds_of(frontier):\n                    del self._segments[segment.number]",
        (f"{OF_IDENTITIES}::test_a_redriven_dead_letter_is_compared_as_at_its_first_receipt",),
    ),
    Mutant(
        "of one dead letter two records accepted",
        "jobs/ingestion/identity_index.py",
        'rest.join(redriven, on="replays_lsn")',
        'rest.join(redriven.clear(), on="replays_lsn")',
        (f"{OF_IDENTITIES}::test_a_dead_letter_is_accepted_once_in_any_corrected_form",),
    ),
    Mutant(
        "a mark of what was accepted counts",
        "jobs/ingestion/replays.py",
        'pl.col("reason").is_not_null() & pl.col("replay_mark").is_null() & is_event',
        'pl.col("replay_mark").is_null() & is_event',
        (f"{OF_REPLAYS}::test_oracle_a_mark_counts_for_an_earlier_unmarked_dead_letter",),
    ),
    Mutant(
        "a dead letter that came back dropped as late",
        "jobs/billing/sums.py",
        'pl.when(pl.col("is_due") & (rule != LatePolicy.HOLD.value)).then(rule)',
        "pl.when(rule != LatePolicy.HOLD.value).then(rule)",
        (f"{OF_BILLING}::test_a_redriven_dead_letter_is_late_by_its_first_receipt",),
    ),
    Mutant(
        "superseded counted",
        "jobs/joins/quantities.py",
        "REPORTING = (Outcome.MATCHED.value, ",
        "REPORTING = (Outcome.SUPERSEDED.value, Outcome.MATCHED.value, ",
        ("tests/rules/test_quantities.py::test_superseded_rows_bill_nobody",),
    ),
    Mutant(
        "dropped straggler billed",
        "jobs/billing/fold.py",
        "    FROM staged\n    WHERE {IS_BILLED}\n    ORDER BY",
        "    FROM staged\n    ORDER BY",
        ("tests/pipelines/test_billing.py::test_a_window_with_only_dropped_stragglers_is_not_stored",),
    ),
    Mutant(
        "a decision counts however late it comes",
        "jobs/billing/holding.py",
        " AND read_decisions.received_at < hold_until AND decided_lsn",
        " AND decided_lsn",
        ("tests/pipelines/test_holding.py::test_a_decision_counts_if_it_was_received_before_the_deadline",),
    ),
    Mutant(
        "a straggler is decided again",
        "jobs/billing/fold.py",
        "decision = CASE WHEN old.decision = 'hold' THEN excluded.decision END,",
        "decision = excluded.decision,",
        ("tests/pipelines/test_holding.py::test_a_straggler_that_is_decided_cannot_be_folded_again",),
    ),
    Mutant(
        "what corrects what waited goes on waiting",
        "jobs/billing/holding.py",
        "    cursor.execute(_BRING_CORRECTING, words)\n",
        "",
        ("tests/pipelines/test_holding.py::test_what_corrects_it_waits_and_is_decided_with_it",),
    ),
    Mutant(
        "a decision was received before F had passed its deadline",
        "jobs/joins/decisions.py",
        "max(received_at, frontier)",
        "received_at",
        ("tests/rules/test_decisions_in_usage.py::test_none_was_received_before_the_f_that_usage_had",),
    ),
    Mutant(
        "time passes and ends no waiting",
        POSTGRES_SINK,
        "                counts = self._fold_time(cursor, frontier, held, memory)\n",
        "                counts: Counts = {}\n",
        (f"{OF_SINK}::test_changes_by_time_alone_are_folded_with_the_frontier",),
    ),
    Mutant(
        "sign ignored",
        "jobs/billing/sums.py",
        'quantity=pl.when(pl.col("sign") < 0).then(-quantity).otherwise(quantity)',
        "quantity=quantity",
        ("tests/pipelines/test_billing.py::test_signed_usage_is_windows_plus_dropped_stragglers",),
    ),
    Mutant(
        "session retraction without successor",
        "jobs/sessionization/fold.py",
        "FROM merged WHERE extended_id IS NULL\n",
        "FROM merged WHERE extended_id IS NULL AND version = 1\n",
        (f"{OF_SESSIONS}::test_a_late_event_joins_two_closed_sessions_two_retractions_and_one_new_version",),
    ),
    Mutant(
        "outcome unknown taken for failed",
        DELTA,
        "            self._write(stored, {**self._fence(), **transactions})\n",
        "            try:\n                self._write(stored, {**self._fence(), **transactions})\n"
        "            except Exception:\n                self._followed.refresh()\n"
        "                self._write(stored, {**self._fence(), **transactions})\n",
        ("tests/streaming/test_object_store.py::test_a_commit_that_the_store_made_and_denied_is_not_made_twice",),
    ),
    Mutant(
        "a commit that lost is made after whatever came before it",
        DELTA,
        "            self._look()\n        raise CommitFailedError(\n",
        "            self._reached(int(self._followed.refresh().version()))\n        raise CommitFailedError(\n",
        (f"{OF_COMMITS}::test_a_driver_that_was_replaced_is_fenced_by_the_version_that_its_successor_made",),
    ),
    Mutant(
        "a commit whose checkpoint failed is made again where others append",
        DELTA,
        "                if self.known != known:\n",
        "                if False:\n",
        (f"{OF_COMMITS}::test_a_checkpoint_that_fails_after_its_commit_has_no_row_committed_twice",),
    ),
    Mutant(
        "a version that is there is overwritten",
        "jobs/runtime/delta/own_commit.py",
        'mode="create"',
        'mode="overwrite"',
        (f"{OF_COMMITS}::test_of_two_copies_of_a_driver_one_commits",),
    ),
    Mutant(
        "a commit of delta-rs goes on from what nobody compared",
        DELTA,
        "if must_look or self._at is None",
        "if self._at is None",
        (f"{OF_COMMITS}::test_rows_that_others_appended_since_give_the_next_ones_other_numbers",),
    ),
    Mutant(
        "who slept for long trusts that the next version is free",
        DELTA,
        "or not is_recent or is_expired",
        "or is_expired",
        (f"{OF_COMMITS}::test_who_slept_until_the_log_was_cleaned_up_commits_nothing_in_a_hole",),
    ),
    Mutant(
        "decision of a straggler not inherited",
        "jobs/billing/corrections.py",
        '        cursor.execute(_INHERIT, {**causes, "restated": UsageCause.RESTATED.value, "minute": MINUTE})\n',
        "",
        (f"{OF_CORRECTIONS}::test_only_the_refund_of_dropped_usage_is_dropped",),
    ),
    Mutant(
        "a correction of a window that nobody has seen closed",
        "jobs/billing/corrections.py",
        "staged.window_start + %(minute)s <= coalesce(closed_meters.closed_until, closed_usage.closed_until), false",
        "true, false",
        (f"{OF_CORRECTIONS}::test_a_reversal_is_a_correction_only_in_a_closed_window",),
    ),
    Mutant(
        "what a driver publishes is not fenced by its successor",
        "jobs/billing/sending.py",
        "Transactions(self._kafka, self._name)",
        'Transactions(self._kafka, f"{self._name}-{self._epoch}")',
        (f"{OF_PUBLISHING}::test_states_of_a_window_are_published_in_order",),
    ),
    Mutant(
        "what waits for Kafka forgets since when",
        "jobs/billing/outbox.py",
        "min(version) AS version, min(changed_at)",
        "max(version) AS version, min(changed_at)",
        ("tests/pipelines/test_outbox.py::test_a_subscriber_ends_with_the_tables_when_two_publishers_compete",),
    ),
    Mutant(
        "a version that may stay as it was",
        "jobs/billing/fold.py",
        "version = old.version + greatest(",
        "version = old.version + 0 * greatest(",
        (f"{OF_OUTBOX}::test_a_window_that_changes_often_is_sent_once_as_it_is_then",),
    ),
    Mutant(
        "a version grows by how often time passed",
        "jobs/billing/fold.py",
        "        + excluded.version - excluded.next_position\n",
        "",
        (f"{OF_OUTBOX}::test_a_version_does_not_depend_on_how_often_time_passed_nor_on_how_usage_was_cut",),
    ),
    Mutant(
        "what waited takes effect before what came meanwhile",
        "jobs/billing/corrections.py",
        "meter, currency ORDER BY first_lsn, usage_lsn),",
        "meter, currency ORDER BY usage_lsn),",
        (f"{OF_HOLDING}::test_a_straggler_that_waits_takes_effect_where_it_is_decided",),
    ),
    Mutant(
        "a decision about former usage is somebody's word about what stands there now",
        "cli/decide.py",
        "decision = 'hold' AND (usage_lsn, meter, account, request_id) IN (\n"
        "            SELECT usage_lsn, meter, account, request_id FROM",
        "decision = 'hold' AND (usage_lsn, meter) IN (\n            SELECT usage_lsn, meter FROM",
        (f"{OF_DECIDING}::test_billing_is_read_first_for_waiting_stragglers_with_a_decision",),
    ),
    Mutant(
        "the audit does not count",
        "jobs/audit/compare/differences.py",
        'same.filter(pl.col("count") != 1)',
        'same.filter(pl.col("count") < 1)',
        ("tests/pipelines/test_audit.py::test_a_fault_in_usage_is_found_and_named[an event doubled]",),
    ),
    Mutant(
        "a pair across a match",
        REJOINING,
        "has_match = bisect_left(matched_us, last_us) > bisect_right(matched_us, first_us)",
        "has_match = False",
        (
            f"{OF_REJOINING}::test_oracle_the_pairs_are_those_of_a_search_of_every_pair",
            f"{OF_AUDIT_RULES}::{BY_THE_RULE}",
        ),
    ),
    Mutant(
        "a second report of a match is the answer to the next request",
        REJOINING,
        "bisect_right(matched_us, last_us + reach_us) > bisect_left(matched_us, first_us - reach_us)",
        "bisect_left(matched_us, last_us) > bisect_right(matched_us, first_us)",
        (f"{OF_AUDIT_PAIRS}[reported_twice-HandMade]",),
    ),
    Mutant(
        "a request that comes back waits for a completion that was given up",
        REJOINING,
        "candidates = waiting[row.side.other]",
        "candidates = waiting[row.side.other] if row.side is Side.COMPLETION else []",
        (
            f"{OF_REJOINING}::test_a_history_turned_round_has_the_same_pairs_turned_round",
            f"{OF_AUDIT_PAIRS}[mended_request-HandMade]",
        ),
    ),
    Mutant(
        "a completion answers the first request of its id",
        REJOINING,
        "            return place - 1\n",
        "            return 0\n",
        (
            f"{OF_REJOINING}::test_oracle_the_pairs_are_those_of_a_search_of_every_pair",
            f"{OF_AUDIT_PAIRS}[fallback-HandMade]",
        ),
    ),
    Mutant(
        "a pair depends on what arrives later",
        REJOINING,
        "key=lambda row: row.arrival",
        "key=lambda row: row.first_received_us",
        (f"{OF_REJOINING}::test_a_rejoined_pair_stays_joined_when_more_arrives",),
    ),
    Mutant(
        "a dead letter that comes back is paired by when it came back",
        "jobs/audit/recompute/rejoins.py",
        'pl.coalesce("first_received_at", "received_at")',
        'pl.col("received_at")',
        (
            f"{OF_AUDIT_RULES}::{BY_THE_RULE}",
            f"{OF_AUDIT_PAIRS}[mended_request_after_its_limit-HandMade]",
        ),
    ),
    Mutant(
        "a reversal of another quantity is believed",
        "jobs/audit/compare/differences.py",
        "        & is_copy\n",
        "",
        (f"{OF_AUDIT_RULES}::test_a_negation_that_differs_from_its_row_is_a_fault[another quantity]",),
    ),
    Mutant(
        "two audits of one version both append",
        "jobs/audit/tables/append.py",
        "if usage.transaction_version(AUDIT) != examined:",
        "if False:",
        (f"{OF_AUDIT}::test_two_audits_of_one_version_correct_once",),
    ),
    Mutant(
        "joins is fenced by an audit",
        DELTA,
        "if moved == [LSN] and",
        "if moved == [] and",
        (f"{OF_AUDIT}::test_joins_and_the_audit_append_after_each_other",),
    ),
    Mutant(
        "another model is taken for another price",
        "jobs/audit/recompute/causes.py",
        "is_fault=is_untrue\n        | (",
        "is_fault=(",
        (f"{OF_AUDIT}::test_a_fault_in_rows_of_an_earlier_audit_is_found[another model-repriced]",),
    ),
    Mutant(
        "a withdrawn price un-bills the past",
        "jobs/joins/catalog_versions.py",
        'known = standing.unique(begun, keep="last", maintain_order=True).filter(~pl.col("deleted"))',
        'known = last.unique(begun, keep="last", maintain_order=True).filter(~pl.col("deleted"))',
        ("tests/rules/test_pricing_rules.py::test_differential_the_prices_version_is_the_one_of_the_rule",),
    ),
    Mutant(
        "a period says what the days before it would say otherwise",
        "jobs/audit/recompute/outcomes.py",
        "    if versions.since is not None:\n",
        "    if False:\n",
        (f"{OF_AUDITS_WHENEVER}::test_daily_audits_agree_with_one_of_everything[accepted_again]",),
    ),
    Mutant(
        "what still waits is corrected",
        "jobs/audit/recompute/decisions.py",
        "    if len(waiting):\n",
        "    if False:\n",
        (f"{OF_AUDITS_WHENEVER}::test_what_waits_is_left_alone_until_it_is_decided",),
    ),
    Mutant(
        "what a repeat superseded is never one pair",
        "jobs/audit/recompute/causes.py",
        'billed = expected.filter(pl.col("outcome") != Outcome.SUPERSEDED.value)',
        "billed = expected",
        (f"{OF_AUDITS_WHENEVER}::test_a_request_superseded_only_by_a_repeat_is_rejoined",),
    ),
    Mutant(
        "a price is for events that do not meet its conditions",
        "metering/price_models.py",
        "priced for priced in self._naming(model) if priced.holds(attributes)",
        "priced for priced in self._naming(model)",
        (f"{OF_PRICES_WITH_CONDITIONS}::test_a_batch_operation_costs_half_and_an_unspecified_one_the_full_price",),
    ),
    Mutant(
        "a prefix is asked for a price before the model itself",
        "metering/price_models.py",
        "return by != model, -len(by),",
        "return by == model, -len(by),",
        (f"{OF_PRICE_MODELS}::{BY_ORDER_OF_PRICES}",),
    ),
    Mutant(
        "a list of models is asked for a price before the model itself",
        "metering/price_models.py",
        "-len(by), self.is_group,",
        "-len(by), not self.is_group,",
        (f"{OF_PRICE_MODELS}::{BY_ORDER_OF_PRICES}",),
    ),
    Mutant(
        "an event chooses the list of models by which it is priced",
        "metering/price_models.py",
        "return BEGINS not in model and not model.startswith(GROUP)",
        "return BEGINS not in model",
        (f"{OF_PRICE_MODELS}::test_a_model_named_in_price_syntax_is_not_priced_by_its_conditions",),
    ),
    Mutant(
        "the stream keeps the first of two lesser reports",
        "metering/joining.py",
        "w.is_lesser and w.value < row.value and",
        "False and",
        ("tests/rules/test_join_rules.py::test_the_best_report_that_comes_while_the_request_waits_counts",),
    ),
    Mutant(
        "the later report bills, however it ended",
        "metering/ranking.py",
        "return *worth, is_report and self.has_quantities, self.occurred_us, self.identity, self.side",
        "return self.occurred_us, is_report and self.has_quantities, *worth, self.identity, self.side",
        ("tests/rules/test_ranking.py::test_oracle_the_billed_report_is_that_of_a_full_scan",),
    ),
    Mutant(
        "the border between two requests of one id parts one from its answer",
        "metering/ranking.py",
        "answered = [group.pop()] if len(group) > 1 and _is_answer(row, group[-1], reach_us) else []",
        "answered = []",
        (f"{OF_RESTATED}::test_an_id_reused_each_week_is_billed_each_week",),
    ),
    Mutant(
        "what replaces usage that came on time is dropped with a straggler beside it",
        "jobs/billing/corrections.py",
        "SELECT corrected_lsn, meter FROM undecided JOIN named",
        "SELECT 0 AS corrected_lsn, meter FROM undecided JOIN named",
        (f"{OF_CORRECTIONS}::test_a_late_better_report_replaces_a_timely_one",),
    ),
    Mutant(
        "what was taken back of usage that came on time is forgotten where a batch ends",
        "jobs/billing/corrections.py",
        '        cursor.execute(_REMEMBER, {**causes, "repriced": UsageCause.REPRICED.value})\n',
        "",
        (f"{OF_CORRECTIONS}::test_a_late_better_report_replaces_a_timely_one",),
    ),
    Mutant(
        "a late report takes the one that came on time off the bill",
        "jobs/audit/recompute/restatements.py",
        "is_put_again=is_ranked & stays & is_late & ends.any().over(of_group),",
        "is_put_again=is_ranked & stays & is_late & pl.lit(value=False),",
        (f"{OF_RESTATED}::test_a_late_report_never_removes_a_timely_one_from_the_bill",),
    ),
    Mutant(
        "a pair that was given up goes by what is configured when the audit comes",
        "jobs/audit/recompute/effective_outcomes.py",
        "found = ((by_rank, longest_us), (earlier, within_us))",
        "found = ((by_rank, within_us), (earlier, within_us))",
        (f"{OF_RESTATED}::test_a_pair_is_joined_by_the_rules_of_its_time",),
    ),
    Mutant(
        "a better report is billed whatever was decided of the one before",
        "jobs/audit/recompute/corrections.py",
        "pl.concat([shared, of_request.select(shared.columns)])",
        "pl.concat([shared])",
        ("tests/pipelines/test_audit_restated.py::test_a_better_report_names_the_report_that_it_replaces",),
    ),
    Mutant(
        "a pair that stands is put together anew",
        "jobs/audit/recompute/rejoins.py",
        "stays = [pair for pair in standing if",
        "stays = [pair for pair in () if",
        (f"{OF_AUDITS_WHENEVER}::test_a_pair_stays_joined_when_more_could_be",),
    ),
    Mutant(
        "a completion repeats its request",
        "jobs/audit/recompute/decisions.py",
        '.over(*KEY, "identity", "family")',
        '.over(*KEY, "identity")',
        (f"{OF_AUDITS_WHENEVER}::test_a_completion_with_the_identity_of_its_request_is_no_repeat_of_it",),
    ),
    Mutant(
        "each contract validates again what an earlier one took",
        "jobs/audit/recompute/late_contracts.py",
        '            remaining = remaining.join(taken.select("lsn"), on="lsn", how="anti")\n',
        "",
        ("tests/pipelines/test_audit_contracted.py::test_no_later_contract_validates_it_again",),
    ),
    Mutant(
        "what is missing at the old end is taken for removed",
        "jobs/audit/tables/retained.py",
        "    if gap <= 0 or (removed is not None and removed != gap):\n",
        "    if gap <= 0:\n",
        ("tests/pipelines/test_audit_retained.py::test_a_row_that_retention_did_not_remove_is_missing[1]",),
    ),
    Mutant(
        "a rebuild takes F from a commit that goes on behind the cut",
        "jobs/rebuild/billing.py",
        'pl.lit(ends_table) | (pl.col("logged_at") != pl.col("logged_at").last())',
        "pl.lit(value=True)",
        (f"{OF_REBUILDS}::test_a_rebuild_reproduces_the_database_to_the_last_digit[103]",),
    ),
    Mutant(
        "a rebuilt window has a version that it had before",
        "jobs/rebuild/run.py",
        "floor = max(last + 2 * next_lsn,",
        "floor = max(2 * next_lsn,",
        (f"{OF_REBUILDS}::test_a_subscriber_gets_every_window_with_a_higher_version_than_before[103]",),
    ),
    Mutant(
        "a driver ends the rebuild of its tables",
        "jobs/runtime/postgres/ownership.py",
        '"job": job}).fetchone() != (True,):\n        connection.close()\n        raise NotYet(',
        '"job": job}).fetchone() is None:\n        connection.close()\n        raise NotYet(',
        (f"{OF_REBUILDS}::test_a_rebuild_fences_the_running_driver_and_holds_up_the_next[103]",),
    ),
    Mutant(
        "an account that was deleted has no zone when it is made again",
        "jobs/joins/billing_days.py",
        '        .filter(~pl.col("deleted"))\n',
        "",
        ("tests/rules/test_billing_days.py::test_an_account_that_is_made_again_after_a_months_end_keeps_its_zone",),
    ),
    Mutant(
        "the lines of a bill go by the clock, and its keys by days",
        "jobs/queries/bills.py",
        "WHERE month = %(month)s",
        "WHERE date_trunc('month', first_window, 'UTC') = %(month)s::timestamp AT TIME ZONE 'UTC'",
        (f"{OF_CALENDAR}::test_usage_before_its_account_is_in_the_same_month_for_every_reader",),
    ),
    Mutant(
        "a month is sound if any calendar explains it",
        "jobs/audit/bills/months.py",
        "    if of_readers != of_joins:\n",
        "    if False:\n",
        (f"{OF_CALENDAR}::test_the_audit_names_a_month_that_readers_cut_by_another_zone_than_joins",),
    ),
    Mutant(
        "a bill goes by the parents of now",
        "metering/parents.py",
        "if stretch.holds_until is None or month.start < stretch.holds_until:",
        "if stretch.holds_until is None:",
        (
            "tests/rules/test_parents.py::test_oracle_a_month_has_the_parent_that_the_account_had_when_it_began",
            f"{OF_ROLLED_UP}::test_a_child_that_is_deleted_stays_in_the_bills_of_the_months_that_it_began[None]",
        ),
    ),
    Mutant(
        "an account that is deleted as of later pays nothing at once",
        ACCOUNT_HISTORY,
        "PERFORM catalog.end_account_history(OLD.account, coalesce(OLD.deleted_at, now()));",
        "PERFORM catalog.end_account_history(OLD.account, now());",
        (f"{OF_ACCOUNTS}::test_an_account_with_a_planned_deletion_pays_until_then[account]",),
    ),
    Mutant(
        "a change that is announced holds at once",
        ACCOUNT_HISTORY,
        "begins := coalesce(NEW.effective_from, NEW.changed_at);",
        "begins := NEW.changed_at;",
        (
            f"{OF_ACCOUNTS}::test_a_planned_change_does_not_change_the_account_before_it_begins",
            f"{OF_ACCOUNTS}::test_differential_the_view_of_accounts_equals_the_versions_of_joins",
        ),
    ),
    Mutant(
        "ended months are billed again without a word",
        "catalog/closed_months.py",
        "if tuple(row.values()) not in before and _is_other(row)",
        "if tuple(row.values()) not in before and not _is_other(row)",
        (
            "tests/pipelines/test_closed_months.py::test_a_backdated_deletion_of_billed_prices_asks_for_confirmation[price]",
        ),
    ),
    Mutant(
        "a price is rounded",
        "jobs/runtime/postgres/migrations/versions/0038_price_per_units.py",
        "IF steps * per <> NEW.unit_price * 1000000000000 THEN",
        "IF false THEN",
        (f"{OF_CHECKED_PRICES}::test_any_decimal_too_many_is_refused",),
    ),
    Mutant(
        "a member is priced by when it occurred, and not by the period's start",
        "jobs/joins/members.py",
        'event_us=bounds["starts_at"].dt.epoch("us"),',
        'event_us=pl.col("event_time").dt.epoch("us"),',
        (
            f"{OF_PERIODS}::test_a_period_is_priced_by_the_version_at_its_start",
            f"{OF_PERIODS}::test_a_period_is_priced_by_the_plan_at_its_start",
        ),
    ),
    Mutant(
        "a reversal of a meter leaves its member",
        "jobs/joins/members.py",
        "filter(is_member & ~_is_credited(outcomes, meter))",
        "filter(is_member)",
        (f"{OF_PERIODS}::{BY_ITS_MEMBERS}[beyond the timeout-a meter is taken back]",),
    ),
    Mutant(
        "a member counts again in each batch",
        "jobs/billing/members.py",
        "WHERE member_rows > 0 AND member_rows - change <= 0",
        "WHERE member_rows > 0",
        (f"{OF_MEMBERS_FOLDED}::test_a_user_of_several_batches_counts_once",),
    ),
    Mutant(
        "a member that was removed goes on counting",
        "jobs/billing/members.py",
        "WHEN aggregation = 'unique' AND has_removals",
        "WHEN aggregation = 'unique' AND false",
        (f"{OF_MEMBERS_FOLDED}::test_a_user_who_was_removed_counts_again_when_another_request_comes",),
    ),
    Mutant(
        "a period closes when it begins",
        "jobs/billing/member_sums.py",
        'closes_at = pl.col("ends_at") +',
        'closes_at = pl.col("starts_at") +',
        (f"{OF_MEMBERS_BILLED}::test_a_closed_period_that_changes_is_corrected_by_the_difference[at once]",),
    ),
    Mutant(
        "a correction of a period is written before its grace is over",
        "jobs/billing/rules.py",
        "closed_under(held, grace(held.rules), frontier)",
        "closed_under(held, OfMeter(timedelta()), frontier)",
        (f"{OF_MEMBER_CORRECTIONS}::test_a_correction_waits_until_all_that_was_on_time_is_known[at once]",),
    ),
    Mutant(
        "usage of before the account was known keeps the bounds of UTC",
        "jobs/joins/members.py",
        "known.days.periods(concerned, period, known.seen_from)",
        "known.days.periods(concerned, period)",
        (
            "tests/pipelines/test_period_scenarios.py::test_usage_of_before_the_account_was_known_closes_with_what_follows",
        ),
    ),
    Mutant(
        "a correction of a period begins with what is late",
        "jobs/billing/member_corrections.py",
        '[member_of(late)] -= late["member_rows"]',
        "[member_of(late)] -= 0",
        (f"{OF_MEMBER_CORRECTIONS}::test_a_correction_waits_until_all_that_was_on_time_is_known[at once]",),
    ),
    Mutant(
        "a late price moves a part of a period",
        "jobs/audit/recompute/member_prices.py",
        'pl.col("starts_at") - MAX_FUTURE < since',
        "pl.lit(value=False)",
        (f"{OF_PERIODS}::test_a_late_price_leaves_a_period_alone_of_which_days_were_removed",),
    ),
    Mutant(
        "a replay compares a part of a period with all of it",
        "jobs/replay/periods.py",
        "if starts < start or ends > end:",
        "if ends > end:",
        (f"{OF_PERIODS_READ}::test_what_if_leaves_out_a_period_of_which_it_is_asked_only_for_a_part",),
    ),
    Mutant(
        "a late price passes over an account that has had another plan since the period's start",
        "jobs/audit/recompute/late_versions.py",
        '("model",) if pinned.has_periods else ("plan", "model")',
        '("plan", "model")',
        (f"{OF_PERIODS}::test_a_price_that_comes_late_moves_all_members_of_the_period",),
    ),
    Mutant(
        "a period begins at midnight of UTC",
        "jobs/joins/billing_days.py",
        "MonthZone(start or FIRST, zone, begins)",
        "MonthZone(FIRST, UNKNOWN_ZONE, None)",
        (f"{OF_PERIODS}::test_a_period_is_of_the_calendar_that_names_the_day",),
    ),
    Mutant(
        "the audit believes the stored members",
        "jobs/audit/bills/proof.py",
        "sums = unequal_members(made, stored) + unequal_days(",
        "sums = unequal_days(",
        (f"{OF_MEMBERS_BILLED}::test_the_audit_finds[a member that nobody put]",),
    ),
    Mutant(
        "a tier by volume ends before its bound",
        PRICE_TIERS,
        "total <= tier.up_to",
        "total < tier.up_to",
        (f"{OF_TIERS}::test_a_tier_goes_up_to_and_includes_its_bound",),
    ),
    Mutant(
        "a flat price of a graduated tier is charged by each version",
        PRICE_TIERS,
        "tier.flat_price if low <= above < high else ZERO",
        "tier.flat_price",
        (f"{OF_TIERS}::{BY_ITS_PART}",),
    ),
    Mutant(
        "a package is charged again where another version goes on with it",
        PRICE_TIERS,
        "_packages(start, self.package_size)",
        "EXACT.divide_int(start, self.package_size)",
        (f"{OF_TIERS}::{BY_ITS_PART}",),
    ),
    Mutant(
        "a correction is rounded by itself and takes nothing back",
        CORRECTIONS_OF_LINES,
        "            pairs.append(replace(_negated(before.line), **place))\n",
        "",
        (f"{OF_INVOICES}::{SUMMED_ONCE}",),
    ),
    Mutant(
        "a key that is gone stays charged",
        CORRECTIONS_OF_LINES,
        "for charge in [*present.values(), *gone]:",
        "for charge in [*present.values()]:",
        (f"{OF_INVOICES}::{SUMMED_ONCE}",),
    ),
    Mutant(
        "verify: events exchanged in a chain pass",
        VERIFICATION,
        "elif event.previous != previous:",
        "elif False:",
        (OF_EVENTS,),
    ),
    Mutant(
        "verify: the hash of an event is not recomputed",
        VERIFICATION,
        "if event.hash != event.expected_hash:",
        "if False:",
        (OF_EVENTS,),
    ),
    Mutant(
        "verify: a chain may lack events",
        VERIFICATION,
        "if event.sequence != sequence + 1:",
        "if event.sequence < sequence:",
        (OF_EVENTS,),
    ),
    Mutant(
        "verify: an invoice that is gone passes",
        VERIFICATION,
        "if event.invoice not in invoices:\n            yield",
        "if False:\n            yield",
        (f"{OF_INVOICES}::test_an_invoice_that_is_gone_and_one_without_a_chain_are_named",),
    ),
    Mutant(
        "verify: an invoice without states passes",
        VERIFICATION,
        "if tuple(states[name]) not in (_ORDER[:2], _ORDER):",
        "if False:",
        (f"{OF_INVOICES}::test_an_invoice_that_is_gone_and_one_without_a_chain_are_named",),
    ),
    Mutant(
        "verify: a line removed passes",
        VERIFICATION,
        "for number in sorted(set(range(1, header.lines + 1)) ^ there):",
        "for number in sorted(there - set(range(1, header.lines + 1))):",
        (f"{OF_INVOICES}::test_a_removed_line_is_named",),
    ),
    Mutant(
        "verify: a line added passes",
        VERIFICATION,
        "for number in sorted(set(range(1, header.lines + 1)) ^ there):",
        "for number in sorted(set(range(1, header.lines + 1)) - there):",
        (f"{OF_INVOICES}::test_a_line_more_than_was_issued_is_named",),
    ),
    Mutant(
        "verify: the hash of a line is not recomputed",
        VERIFICATION,
        "if line.hash != stored_hash:",
        "if False:",
        (f"{OF_INVOICES}::test_a_changed_line_is_named",),
    ),
    Mutant(
        "verify: rounding is not recomputed",
        VERIFICATION,
        "if is_rounded_here and line.amount != header.money.rounded(exact):",
        "if False:",
        (f"{OF_INVOICES}::test_an_amount_that_is_not_rounded_as_the_invoice_says_is_named_even_with_all_hashes",),
    ),
    Mutant(
        "verify: what is taken back is rounded anew",
        VERIFICATION,
        "is_rounded_here=not _takes_back(line, following)",
        "is_rounded_here=True",
        (f"{OF_INVOICES}::test_what_is_taken_back_keeps_the_rounding_of_the_invoice_that_issued_it",),
    ),
    Mutant(
        "verify: amount and residual need not be the exact amount",
        VERIFICATION,
        "elif EXACT.add(line.amount, line.residual) != (exact or 0):",
        "elif False:",
        (f"{OF_INVOICES}::test_a_rounding_of_one_in_the_twelfth_place_is_named_even_with_all_hashes",),
    ),
    Mutant(
        "verify: a total is not that of its lines",
        VERIFICATION,
        "if total != header.total:",
        "if False:",
        (f"{OF_INVOICES}::test_a_removed_line_is_named",),
    ),
    Mutant(
        "verify: a residual is not that of its lines",
        VERIFICATION,
        "elif residual != header.residual:",
        "elif False:",
        (f"{OF_INVOICES}::test_a_residual_of_an_invoice_that_is_not_that_of_its_lines_is_named",),
    ),
    Mutant(
        "verify: lines are not compared with what was issued",
        VERIFICATION,
        "name in issued and invoice.document != issued[name]",
        "name in issued and False",
        (f"{OF_INVOICES}::test_a_line_changed_with_its_hash_is_found_by_the_chain",),
    ),
    Mutant(
        "verify: two swapped invoices are not named together",
        VERIFICATION,
        "if other is not None:",
        "if False:",
        (f"{OF_INVOICES}::test_two_swapped_invoices_are_named_together",),
    ),
    Mutant(
        "verify: a state may be of another content",
        VERIFICATION,
        "if event.document != issued.get(event.invoice):",
        "if False:",
        (f"{OF_INVOICES}::test_a_state_of_another_content_is_named",),
    ),
    Mutant(
        "verify: lines of a voided invoice count",
        VERIFICATION,
        "event.state is not State.ISSUED or event.invoice in voided or",
        "event.state is not State.ISSUED or",
        (f"{OF_INVOICES}::test_the_lines_of_a_voided_invoice_count_for_nothing",),
    ),
    Mutant(
        "verify: a correction may be applied twice",
        VERIFICATION,
        "if place in taken:",
        "if False:",
        (f"{OF_INVOICES}::test_a_correction_applied_twice_is_named",),
    ),
    Mutant(
        "verify: a correction may take back another line",
        VERIFICATION,
        "or (known.invoice, known.line.line) != place or",
        "or",
        (BY_TAKING_BACK,),
    ),
    Mutant(
        "verify: a key may be charged twice",
        VERIFICATION,
        "if known is not None and line.corrects_invoice is None:",
        "if False:",
        (f"{OF_INVOICES}::test_a_key_charged_twice_without_a_correction_is_named",),
    ),
    Mutant(
        "verify: the quantity taken back is not compared",
        VERIFICATION,
        OF_NEGATION,
        "((line.amount, known.amount), (line.residual, known.residual))",
        (BY_TAKING_BACK,),
    ),
    Mutant(
        "verify: the amount taken back is not compared",
        VERIFICATION,
        OF_NEGATION,
        "((line.quantity, known.quantity), (line.residual, known.residual))",
        (BY_TAKING_BACK,),
    ),
    Mutant(
        "verify: the residual taken back is not compared",
        VERIFICATION,
        OF_NEGATION,
        "((line.quantity, known.quantity), (line.amount, known.amount))",
        (BY_TAKING_BACK,),
    ),
    Mutant(
        "verify: no amount takes back an amount of nothing",
        VERIFICATION,
        " and (line.exact_amount is None) == (known.exact_amount is None)",
        "",
        (f"{OF_INVOICES}::test_a_correction_without_an_amount_of_a_line_that_costs_nothing_is_named",),
    ),
    Mutant(
        "verify: a number may be skipped",
        VERIFICATION,
        "if number > before + 1:",
        "if number > before + 2:",
        (f"{OF_INVOICES}::test_a_skipped_number_is_named",),
    ),
    Mutant(
        "verify: a number may be given twice",
        VERIFICATION,
        "elif number <= before:",
        "elif False:",
        (f"{OF_INVOICES}::test_a_skipped_number_is_named",),
    ),
    Mutant(
        "verify: a month may be written off only once",
        VERIFICATION,
        "if line.key.kind != WRITE_OFF]",
        "]",
        (f"{OF_INVOICES}::test_each_month_may_be_written_off_again",),
    ),
    Mutant(
        "each part of a fee is rounded by itself",
        PLAN_TERMS,
        "return EXACT.subtract(accrued(amount, number + 1, days, decimals), accrued(amount, number, days, decimals))",
        "return accrued(amount, 1, days, decimals)",
        (f"{OF_PLAN_TERMS}::test_parts_of_a_month_under_equal_terms_come_to_the_whole_fee_to_the_last_digit",),
    ),
    Mutant(
        "a day belongs to the last plan that an account has on it",
        PLAN_TERMS,
        "stretch.terms is None, stretch.begins)",
        "stretch.terms is None, -stretch.begins.timestamp())",
        (f"{OF_PLAN_TERMS}::{BY_DAYS}",),
    ),
    Mutant(
        "a maximum of some days caps the whole month",
        PLAN_TERMS,
        "maximum if has_maximum else None",
        "maximum",
        (f"{OF_PLAN_TERMS}::{BY_DAYS}",),
    ),
    Mutant(
        "a minimum leaves the flat fee out",
        PLAN_TERMS,
        "total = EXACT.add(usage, charged(Fee.FLAT, self.flat_fee))",
        "total = usage",
        (f"{OF_PLAN_TERMS}::test_a_month_comes_to_usage_and_fee_but_never_below_the_minimum_nor_above_the_maximum",),
    ),
    Mutant(
        "the last steps of a tier are of the first members of a pool, whatever their remainders are",
        "metering/pools.py",
        "key=lambda place: -remainders[place]",
        "key=lambda place: place",
        (f"{OF_SHARES}::test_members_pay_for_their_own_quantities_what_the_pool_costs_together",),
    ),
    Mutant(
        "a part of a pool's ladder begins with the month",
        POOLS,
        "sum(up + down) OVER reached - up - down AS starts",
        "0::numeric AS starts",
        (f"{OF_POOLS}::test_any_pools_of_any_quantities_cost_what_the_definition_says_and_each_has_its_own",),
    ),
    Mutant(
        "a pool that was checked stays so whatever the transaction changes later",
        POOLS,
        "PERFORM set_config('weir.checked_pools', '', true);",
        "NULL;",
        (f"{OF_POOLS}::test_a_transaction_checks_a_pool_once_and_again_after_what_it_changes_later",),
    ),
    Mutant(
        "a member of a pool is closed without the others",
        "jobs/close/pools.py",
        "if (missing := sorted(members & left))",
        "if (missing := sorted(members & left)) and False",
        (f"{OF_POOLS}::test_all_of_a_pool_are_closed_together_or_nobody",),
    ),
)
