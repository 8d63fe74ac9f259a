/* SPDX-License-Identifier: MIT */
/* The sub-tests. Each runs in a process of its own. */
#ifndef QUIRE_TESTS_DEVICE_TESTS_H
#define QUIRE_TESTS_DEVICE_TESTS_H

/* attention.c */
void test_attend_f32(void);
void test_attend_f16(void);
void test_attend_bf16(void);
void test_attend_q8_0(void);
void test_attend_q5_1(void);
void test_attend_q5_0(void);
void test_attend_q4_1(void);
void test_attend_q4_0(void);
void test_attend_iq4_nl(void);
void test_invariance(void);
void test_sched(void);
void test_selected(void);

/* raw.c */
void test_raw(void);
void test_flip(void);

/* bytes.c */
void test_bytes(void);
void test_bytes_tiny(void);
void test_bytes_any(void);
void test_bytes_one_bad(void);
void test_bytes_cleared(void);
void test_bytes_threads(void);

/* state.c */
void test_state(void);
void test_streams(void);
void test_copy(void);

/* contexts.c */
void test_window(void);
void test_contexts(void);
void test_early(void);
void test_short_stream(void);
void test_apart(void);
void test_two_makers(void);
void test_together(void);

/* shift.c */
void test_shift(void);
void test_shift_rotated(void);

/* hostile.c */
void test_masked(void);
void test_empty(void);
void test_nan_rows(void);
void test_bad_cell(void);

/* odd.c */
void test_odd_ops(void);
void test_unattended(void);
void test_one_side(void);

/* policy.c */
void test_policy_attend(void);
void test_policy_rows(void);
void test_policy_shift(void);
void test_policy_nan(void);
void test_policy_give(void);
void test_policy_take(void);

/* known.c */
void test_known_give(void);
void test_known_take(void);
void test_bare_rows(void);
void test_lost_shift(void);
void test_lost_mask(void);
void test_lost_ends(void);
void test_told_give(void);
void test_told_cpu(void);
void test_told_device(void);
void test_told_planned(void);
void test_told_plain(void);

/* Bytes that one process of the test leaves for another: at most SHARED_BYTES. */
enum { SHARED_BYTES = 1 << 20 };
extern unsigned char *shared_bytes;

#endif
