/* SPDX-License-Identifier: MIT */
/* geometry: the caller's model shape, checked and brought to one form. */
#ifndef QUIRE_CORE_GEOMETRY_H
#define QUIRE_CORE_GEOMETRY_H

#include "core/core.h"

#define QUIRE_MAX_LAYERS 4096u
#define QUIRE_MAX_HEADS 65535u
#define QUIRE_MAX_D 1024u

/* The caller's geometry after checking everything. *why gets one sentence if it is not valid. */
quire_status quire_geometry_read(quire_geometry *out, const quire_geometry *geometry, const char **why);
/* Layer `layer` of a checked geometry. */
quire_layer quire_geometry_layer(const quire_geometry *geometry, uint32_t layer);

#endif
