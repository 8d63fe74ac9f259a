/* SPDX-License-Identifier: MIT */
/*
 * safetensors: a u64 with the length of a header, the header (JSON: name -> type, shape, place), the data.
 *
 * Read from memory, which is usually a mapped file. Nothing in the header is believed: memory follows the bytes that are there,
 * places are checked against the data and against each other. Data may begin at odd addresses; copy, never cast.
 */
#ifndef QUIRE_FILES_SAFETENSORS_H
#define QUIRE_FILES_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { ST_MAX_RANK = 8 };

typedef enum st_type {
    ST_BOOL,
    ST_U8,
    ST_I8,
    ST_U16,
    ST_I16,
    ST_F16,
    ST_BF16,
    ST_U32,
    ST_I32,
    ST_F32,
    ST_U64,
    ST_I64,
    ST_F64,
    ST_N_TYPES
} st_type;

uint32_t st_type_bytes(st_type type);
const char *st_type_name(st_type type); /* "F16" */

typedef struct st_tensor {
    const char *name;
    st_type type;
    uint32_t rank;
    uint64_t shape[ST_MAX_RANK];
    const uint8_t *data;
    size_t bytes; /* what shape and type say */
} st_tensor;

typedef struct st_pair {
    const char *key, *value;
} st_pair;

typedef struct safetensors {
    st_tensor *tensors;
    size_t n_tensors;
    st_pair *metadata;
    size_t n_metadata;
    char *text; /* where names, keys and values lie */
} safetensors;

/* The bytes must outlive what is read. false: message has one sentence, and nothing is to be freed. */
bool safetensors_read(safetensors *out, const uint8_t *bytes, size_t n, char *message, size_t size);
void safetensors_free(safetensors *s);
const st_tensor *safetensors_find(const safetensors *s, const char *name); /* NULL: it is not there */
const char *safetensors_metadata(const safetensors *s, const char *key);   /* NULL: it is not there */

/* Tensors one after the other without gaps, in the order given: those with long elements first keep all of them aligned. */
bool safetensors_write(FILE *file, const st_tensor *tensors, size_t n_tensors, const st_pair *metadata,
                       size_t n_metadata);

#endif
