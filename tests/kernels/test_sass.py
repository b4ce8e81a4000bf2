"""Reading a disassembly: what is counted, where loops are, and how long one warp's path is."""

from __future__ import annotations

import pytest

from kernels.sass import SassSummary, parse, summarise

STRAIGHT = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/                   S2R R0, SR_TID.X ;
        /*0020*/               @P0 LDG.E.128 R4, [R2.64] ;
        /*0030*/                   FADD R8, R4, R7 ;
        /*0040*/                   STL.64 [R1], R8 ;
        /*0050*/                   LDL R10, [R1+0x4] ;
        /*0060*/                   STG.E.U16 [R2.64], R10 ;
        /*0070*/                   EXIT ;
.L_x_0:
        /*0080*/                   BRA `(.L_x_0);
        /*0090*/                   NOP;
"""
LOOP = """
        /*0000*/                   MOV R2, 0x0 ;
.L_x_1:
        /*0010*/                   LDG.E R4, [R2.64] ;
        /*0020*/                   FADD R5, R5, R4 ;
        /*0030*/                   ISETP.NE.AND P0, PT, R2, R3, PT ;
        /*0040*/               @P0 BRA `(.L_x_1) ;
        /*0050*/                   EXIT ;
"""


def test_counts_and_widths() -> None:
    summary = summarise(STRAIGHT, num_warps=4, dram_latency=400, l2_latency=200)
    assert summary.instructions == 8
    assert summary.mix == {"EXIT": 1, "FADD": 1, "LDG": 1, "LDL": 1, "MOV": 1, "S2R": 1, "STG": 1, "STL": 1}
    assert (summary.spill_store_bytes, summary.spill_load_bytes) == (8, 4)
    assert (summary.straight.load_bytes, summary.straight.store_bytes) == (16, 2)
    assert summary.straight.pipes == {"control": 1, "fp32": 1, "int": 2, "memory": 4}
    assert summary.loops == []


def test_the_path_waits_where_a_result_is_used() -> None:
    """Issue at 1, 2, 3; the add waits for the load (403), the spill for the add (407); the store for its reload."""
    summary = summarise(STRAIGHT, num_warps=4, dram_latency=400, l2_latency=200)
    assert summary.straight.cycles_dram == 403 + 4 + 1 + 33 + 1
    assert summary.straight.cycles_dram - summary.straight.cycles_l2 == 200


def test_a_loop_is_found_and_its_iteration_costs_a_load_and_an_add() -> None:
    for text in (LOOP, LOOP.replace(".L_x_1:\n", "").replace("`(.L_x_1)", "0x10")):
        summary = summarise(text, num_warps=1, dram_latency=400, l2_latency=200)
        (loop,) = summary.loops
        assert (loop.instructions, loop.load_bytes) == (4, 4)
        # load, wait, add, compare, wait for the predicate
        assert loop.cycles_dram == 1 + 400 + 1 + 4
        assert loop.cycles_l2 == loop.cycles_dram - 200


def test_asynchronous_copies_are_waited_for_by_group() -> None:
    def cycles(open_groups: int) -> float:
        text = f"""
        /*0000*/                   LDGSTS.E.128 [R0], [R2.64] ;
        /*0010*/                   LDGDEPBAR ;
        /*0020*/                   LDGSTS.E.128 [R0], [R2.64] ;
        /*0030*/                   LDGDEPBAR ;
        /*0040*/                   DEPBAR.LE SB0, {open_groups:#x} ;
        /*0050*/                   EXIT ;
        """
        return summarise(text, 1, 400, 200).straight.cycles_dram

    assert cycles(2) == 6
    assert cycles(1) == 1 + 400 + 1
    assert cycles(0) == 3 + 400 + 1


def test_barriers_cost_more_with_more_warps() -> None:
    text = "/*0000*/ BAR.SYNC.DEFER_BLOCKING 0x0 ;\n/*0010*/ EXIT ;\n"
    one, four, many = (summarise(text, warps, 1, 1).straight.cycles_dram for warps in (1, 4, 32))
    assert one < four < many


def test_code_behind_the_last_exit_is_counted_but_not_walked() -> None:
    tail = (
        "        /*0080*/                   MUFU.RCP R3, R4 ;\n        /*0090*/                   MUFU.RCP R3, R3 ;\n"
    )
    text = "\n".join(
        line for line in STRAIGHT.splitlines() if "BRA" not in line and "NOP" not in line and "L_x" not in line
    )
    with_tail = summarise(text + "\n" + tail, 4, 400, 200)
    assert with_tail.instructions == 10
    assert with_tail.straight.cycles_dram == summarise(STRAIGHT, 4, 400, 200).straight.cycles_dram


def test_no_code_is_an_error_and_json_is_a_round_trip() -> None:
    with pytest.raises(ValueError, match="no instructions"):
        summarise("nothing", 1, 1, 1)
    assert parse("") == []
    summary = summarise(LOOP, 1, 400, 200)
    assert SassSummary.from_json(summary.to_json()) == summary
