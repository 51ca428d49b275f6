"""One row of results as a record: its arm, cell, boot, and a block where the columns suffice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.core.checks import Expectations, find_invalid
from orchestrator.core.codec import from_plain
from orchestrator.core.sampling import same_temperature
from orchestrator.core.space import CAPABILITIES
from orchestrator.core.token_checks import STEP_TOLERANCE
from orchestrator.core.types import (
    Arm,
    Block,
    Cell,
    CounterSnapshot,
    EngineFacts,
    Invalid,
    Invalidity,
    TokenAudit,
)
from orchestrator.results.columns import POSITION, is_same, similar, text_of, value_of
from orchestrator.results.files import Raw
from orchestrator.results.units import unit_faults

UNKNOWN_WORKLOAD = "unknown"
MEASURE_SCHEMA = "specpilot.measure/1"
"""Of the records that ``measure --json`` prints."""
_FROM_FILES = Expectations(needs_counters=False, allows_cache=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one row says; None where it does not."""

    where: str
    arm: Arm
    cell: Cell
    boot: str | None
    node: str | None
    tok_s: float | None
    """Output tokens / s of all streams by wall."""
    block: Block | None
    """None where tokens or the window's length are not known."""
    stated: tuple[float, float, float]
    """Tokens, seconds and tok_s as the row states them, 0 where it does not; tok_s only where they
    do not give it."""
    facts: EngineFacts | None = None
    given_length: float | None = None
    """Acceptance length that the row states without counts."""
    num_runs: int = 1
    """Runs that the row is the mean of."""

    @property
    def has_counters(self) -> bool:
        """Whether the row says what the objective needs: tokens, time, and counts of drafts."""
        if self.block is None:
            return False
        counters = self.block.counters
        counted = bool(counters.num_drafts) and counters.num_accepted_tokens is not None
        return self.arm.is_baseline or counted

    @property
    def is_valid(self) -> bool:
        """Whether nothing speaks against it; a row without a block cannot be checked."""
        return self.block is None or self.block.is_valid

    @property
    def seconds_per_token(self) -> float | None:
        """Seconds per output token of one stream, streams / tok_s; None without a throughput.

        None in the open loop too, where the row does not say how many requests ran.
        """
        if not self.tok_s or self.cell.is_open_loop:
            return None
        return self.cell.streams / self.tok_s


def observe(raw: Raw) -> tuple[Observation | None, list[str]]:
    """Return what a row or record says, and what is wrong with it; None with any fault."""
    if raw.values.get("schema") == MEASURE_SCHEMA:
        return _of_measure(raw)
    if isinstance(raw.values.get("counters"), Mapping) and "block_id" in raw.values:
        return _of_block(raw)
    return _of_row(raw)


def _of_measure(raw: Raw) -> tuple[Observation | None, list[str]]:
    """Read a record of ``measure --json``; which arm it was, its maker has to add."""
    block = raw.values.get("block")
    arm, faults = _arm(raw.values)
    if arm is None:
        faults.append(
            "a record of measure does not know its arm: add the arm's keys to it or give --set"
        )
        return None, faults
    if not isinstance(block, Mapping):
        return None, ["the record has no block"]
    boot, _ = value_of(raw.values, "boot")
    return _with_block(raw, block, arm=arm, boot=None if boot is None else str(boot))


def _of_block(raw: Raw) -> tuple[Observation | None, list[str]]:
    """Read one of a trial's blocks.json; the arm is what the engine said beside it."""
    if raw.facts is None:
        arm, faults = _arm(raw.values)
        if arm is None:
            hint = "blocks.json does not say its arm: keep engine_facts.json beside it"
            return None, [*faults, hint]
        return _with_block(raw, raw.values, arm=arm, boot=str(raw.values.get("boot_id")))
    try:
        facts = from_plain(EngineFacts, raw.facts)
    except ValueError as error:
        return None, [f"engine_facts.json is of another version ({error})"]
    of_engine = {
        "engine_build": facts.engine_version,
        "num_speculative_tokens": facts.num_speculative_tokens or 0,
        "draft_sample_method": facts.draft_sample_method,
        "rejection_sample_method": facts.rejection_sample_method,
    }
    # An engine that does not say its version is given it; a rule that it does not say it has not.
    build, _ = value_of(raw.values, "engine_build")
    arm, faults = _arm({**of_engine, "engine_build": facts.engine_version or build})
    if arm is None:
        return None, faults
    found, faults = _with_block(raw, raw.values, arm=arm, boot=facts.boot_id)
    return (None if found is None else replace(found, facts=facts)), faults


def _with_block(
    raw: Raw, plain: Mapping[str, object], *, arm: Arm, boot: str | None
) -> tuple[Observation | None, list[str]]:
    names = set(Block.__dataclass_fields__)
    try:
        block = from_plain(Block, {key: value for key, value in plain.items() if key in names})
    except (ValueError, TypeError, AttributeError) as error:
        return None, [f"the block is of another version ({error})"]
    node, _ = value_of(raw.values, "node") if "schema" in raw.values else (None, None)
    states = block.node_states
    tok_s = block.output_tokens / block.duration_s if block.duration_s > 0 else None
    observation = Observation(
        where=raw.where,
        arm=arm,
        cell=block.cell,
        boot=boot,
        node=str(node) if node is not None else states[0].node_id if states else None,
        tok_s=tok_s or None,
        block=block,
        stated=(block.output_tokens, block.duration_s, 0.0),
    )
    return observation, list(_contradicted(raw.values, observation, block))


def _contradicted(values: Mapping[str, object], known: Observation, block: Block) -> Iterator[str]:
    """Yield what is stated beside a record, or given for all rows, and the record says otherwise.

    What the record does not say is no contradiction.
    """
    counters = block.counters
    recorded: dict[str, object] = {
        **{name: getattr(known.arm, name) for name in Arm.__dataclass_fields__},
        "boot": known.boot,
        "node": known.node,
        "streams": block.cell.streams,
        "temperature": block.cell.temperature,
        "workload": block.cell.workload,
        "tokens": block.output_tokens,
        "seconds": block.duration_s,
        "drafts": counters.num_drafts,
        "draft_tokens": counters.num_draft_tokens,
        "accepted": counters.num_accepted_tokens,
    }
    for name, value in recorded.items():
        stated, fault = value_of(values, name)
        if fault:
            yield fault
        elif stated is not None and value is not None and not is_same(name, stated, str(value)):
            given = text_of(values[name])
            yield f"{name} is given as {given!a:.60} and the record says {str(value)!a:.60}"


def _of_row(raw: Raw) -> tuple[Observation | None, list[str]]:
    values: dict[str, object] = {}
    faults: list[str] = []
    for name in {*raw.values, *_ROW_COLUMNS}:
        if name in _ROW_COLUMNS or POSITION.fullmatch(name):
            values[name], fault = value_of(raw.values, name)
            faults += [fault] if fault else []
    arm, arm_faults = _arm(raw.values)
    cell, cell_faults = _cell(values)
    positions, position_faults = _positions(values)
    faults += [f for f in (*arm_faults, *cell_faults, *position_faults) if f not in faults]
    if arm is None or cell is None or faults:
        return None, faults
    row = _Row(arm=arm, cell=cell, positions=positions, values=values)
    faults = [*unit_faults(arm, cell, {**values, "accepted_per_pos": positions})]
    return (None, faults) if faults else (row.observation(raw.where), [])


_ROW_COLUMNS = (
    *("boot", "node", "streams", "temperature", "workload", "tokens", "seconds", "tok_s"),
    *("drafts", "draft_tokens", "accepted", "accepted_per_pos", "acceptance_length"),
    *("acceptance_rate", "engine_tokens", "ttft_s", "tpot_s", "requests", "failed", "runs"),
)


def _arm(values: Mapping[str, object]) -> tuple[Arm | None, list[str]]:
    found = {name: value_of(values, name) for name in Arm.__dataclass_fields__}
    faults = [fault for _, fault in found.values() if fault]
    build, depth, draft, rejection = (value for value, _ in found.values())
    if build is None:
        faults.append("engine_build is missing: give the column or --set engine_build=VERSION")
    if depth is None and found["num_speculative_tokens"][1] is None:
        faults.append("num_speculative_tokens is missing: 0 is no speculation")
    elif depth and (draft is None or rejection is None):
        faults.append("draft_sample_method and rejection_sample_method must be stated with a depth")
    faults += _slips({name: found[name][0] for name in CAPABILITIES})
    if faults or not isinstance(depth, float):
        return None, faults
    if not depth and (draft, rejection) != (None, None):
        return None, ["a rule is stated although num_speculative_tokens is 0"]
    arm = Arm(
        engine_build=str(build),
        num_speculative_tokens=int(depth),
        draft_sample_method=None if draft is None else str(draft),
        rejection_sample_method=None if rejection is None else str(rejection),
    )
    return arm, []


def _slips(rules: Mapping[str, object]) -> Iterator[str]:
    """Yield the rules that look like a slip of a known one: it would be an arm of its own.

    A name that is like none is taken as it stands: published tables do not always say.
    """
    for name, value in rules.items():
        known = CAPABILITIES[name]
        meant = None if value in known else similar(str(value), known)
        if value is not None and meant is not None:
            yield f"{name} '{value}' is not known: is it {meant}?"


def _cell(values: Mapping[str, object]) -> tuple[Cell | None, list[str]]:
    streams, temperature = values.get("streams"), values.get("temperature")
    faults: list[str] = []
    if streams is None:
        faults.append("streams is missing: a throughput without its concurrency says nothing")
    elif streams == 0:
        faults.append("streams is 0")
    if temperature is None:
        faults.append("temperature is missing: give the column or --set temperature=VALUE")
    if faults or not isinstance(streams, float) or not isinstance(temperature, float):
        return None, faults
    workload = values.get("workload")
    name = UNKNOWN_WORKLOAD if workload is None else str(workload)
    same = same_temperature(temperature)
    return Cell(streams=int(streams), temperature=same, workload=name), []


def _positions(values: Mapping[str, object]) -> tuple[tuple[float, ...] | None, list[str]]:
    """Return the accepted drafts by position, from the list or from p0, p1 and so on."""
    listed = values.get("accepted_per_pos")
    if listed is None:
        numbered = sorted(
            (int(match[1]), value)
            for name, value in values.items()
            if (match := POSITION.fullmatch(name)) and isinstance(value, float)
        )
        if [index for index, _ in numbered] != list(range(len(numbered))):
            return None, ["the positions p0, p1, ... have a gap"]
        return tuple(value for _, value in numbered) or None, []
    items: Sequence[object] = (
        listed
        if isinstance(listed, list)
        else str(listed).strip("[] ").replace(",", " ").replace(";", " ").split()
    )
    found = [value_of({"p0": item}, "p0") for item in items]
    faults = [f"accepted_per_pos: {fault.replace('p0 ', '', 1)}" for _, fault in found if fault]
    numbers = tuple(value for value, _ in found if isinstance(value, float))
    if not faults and len(numbers) < len(found):
        faults = ["accepted_per_pos has a gap"]
    return (None, faults) if faults else (numbers or None, [])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A row without faults, about to become a record."""

    arm: Arm
    cell: Cell
    positions: tuple[float, ...] | None
    values: Mapping[str, object]

    def number(self, name: str) -> float | None:
        value = self.values.get(name)
        return value if isinstance(value, float) else None

    def text(self, name: str) -> str | None:
        value = self.values.get(name)
        return None if value is None else str(value)

    def observation(self, where: str) -> Observation:
        tokens, seconds, tok_s = (self.number(name) for name in ("tokens", "seconds", "tok_s"))
        stated = (tokens or 0.0, seconds or 0.0, 0.0 if tokens and seconds else tok_s or 0.0)
        # Of the three any two give the third.
        if tok_s is None and tokens and seconds:
            tok_s = tokens / seconds
        elif tokens is None and tok_s and seconds:
            tokens = float(round(tok_s * seconds))
        elif seconds is None and tok_s and tokens:
            seconds = tokens / tok_s
        block = None if not tokens or not seconds else self._block(tokens, seconds)
        return Observation(
            where=where,
            arm=self.arm,
            cell=self.cell,
            boot=self.text("boot"),
            node=self.text("node"),
            tok_s=tok_s,
            block=block,
            stated=stated,
            given_length=self.number("acceptance_length") or self._length_of_rate(),
            num_runs=int(self.number("runs") or 1),
        )

    def _length_of_rate(self) -> float | None:
        rate = self.number("acceptance_rate")
        return None if rate is None else 1 + rate * self.arm.num_speculative_tokens

    def _block(self, tokens: float, seconds: float) -> Block:
        counters = CounterSnapshot(
            generation_tokens=self.number("engine_tokens"),
            prompt_tokens=None,
            num_drafts=self.number("drafts"),
            num_draft_tokens=self.number("draft_tokens"),
            num_accepted_tokens=self._accepted(),
            num_accepted_tokens_per_pos=self.positions,
        )
        engine = counters.generation_tokens
        ttft, tpot = self.number("ttft_s"), self.number("tpot_s")
        block = Block(
            block_id="",
            boot_id="",
            index=0,
            cell=self.cell,
            duration_s=seconds,
            counters=counters,
            audit=TokenAudit(
                client_total=int(tokens),
                engine_total=engine,
                unknown_total=0,
                client_window=int(tokens),
                engine_window=engine,
                edge_tokens=0,
            ),
            # Tokens came, so at least one request was answered; how many is not asked of it.
            num_requests=int(self.number("requests") or 1),
            num_failed=int(self.number("failed") or 0) if self.number("requests") else 0,
            ttft_s=() if ttft is None else (ttft,),
            tpot_s=() if tpot is None else (tpot,),
            finish_reasons={},
        )
        expected = replace(_FROM_FILES, arm=self.arm)
        invalid = (*find_invalid(block, expected), *_steps(block, self.arm))
        return replace(block, invalid=invalid)

    def _accepted(self) -> float | None:
        accepted = self.number("accepted")
        if accepted is None and self.positions is not None:
            return sum(self.positions)
        return accepted


def _steps(block: Block, arm: Arm) -> Iterator[Invalidity]:
    """Compare the counters with the client's tokens, where the engine's own count is missing."""
    drafts, accepted = block.counters.num_drafts, block.counters.num_accepted_tokens
    if arm.is_baseline or not drafts or accepted is None or block.audit.engine_window is not None:
        return
    tokens, by_steps = block.output_tokens, drafts + accepted
    if abs(tokens - by_steps) > STEP_TOLERANCE * tokens:
        yield Invalidity(
            kind=Invalid.STEP_TIME,
            detail=f"{drafts:.0f} drafts and {accepted:.0f} accepted tokens make {by_steps:.0f} "
            f"tokens and the row has {tokens}: the counters are of another window, or of other "
            "traffic too",
        )
