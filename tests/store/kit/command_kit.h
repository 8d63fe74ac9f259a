/* SPDX-License-Identifier: MIT */
/* The command `quire store` as a user runs it, and slot files as llama-server writes them. */
#ifndef QUIRE_TESTS_COMMAND_KIT_H
#define QUIRE_TESTS_COMMAND_KIT_H

#include "store/kit/store_kit.h"

#define KIT_OUTPUT 8192

/* Runs `quire store ...`; its output, errors too, is in out. Returns the exit code. */
int kit_quire(char out[KIT_OUTPUT], const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A file with this text and mode. */
void kit_write_text(const char *path, const char *text, uint32_t mode);
/* Permission bits; of a file that is not there UINT32_MAX. */
uint32_t kit_mode(const char *path);

/* 3 layers. Rows and tokens are functions of position, layer and salt. */
typedef struct kit_slot {
    uint32_t version, n_cells, n_streams, salt;
    uint32_t n_tokens; /* 0: one more than cells */
    uint32_t rot_k, rot_v;
    uint32_t k_type, v_type; /* ggml's numbers; 0: f16 and q8_0 */
    bool transposed;
    /* What an honest slot does not have. */
    bool is_reversed;        /* cell 0 has the last position */
    uint32_t first_position; /* of cell 0 */
    bool has_two_sequences;  /* the second half of the cells belongs to another one */
    uint32_t coded;          /* rows are a mark, codes up to this byte, and zeros; 0: they are not */
} kit_slot;
void kit_slot_write(const char *path, const kit_slot *slot);

#endif
