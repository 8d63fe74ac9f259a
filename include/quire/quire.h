/* SPDX-License-Identifier: MIT */
/*
 * quire.h: attention over a KV cache kept in 2 to 8 bits per value. It includes the headers of the library, one per subject.
 *
 * A plan defines how each layer is encoded, a pool owns the memory, a sequence owns the tokens of one conversation.
 * A step reserves rows. Append encodes new rows directly into tiles (64 tokens of one KV head, K or V). Attend reads
 * the tiles. No uncompressed copy of the cache exists at any time.
 *
 * Limits
 *  - Positions are 32-bit; a sequence holds at most 2^31 - 1 tokens.
 *  - Head sizes 1 to 1024, layers 1 to 4096, heads 1 to 65535. A head size that is not a multiple of 16 is padded
 *    in memory; the plan reports it.
 *  - Quantized rows lose information. Encoding never stores NaN or infinity: NaN becomes 0, values that are too
 *    large saturate, and both are counted.
 *
 * Threads. The library creates no threads except those of quire_threads_create(). Only one thread at a time may use a
 * given sequence, step, batch, profile or workspace. Different threads may use different ones at the same time, also
 * when they belong to one pool. Any thread may use a pool. Plans, formats and codecs never change after creation and
 * can be shared freely. Whoever destroys an object sees to it that nobody uses it any more.
 *
 * fork(). A child process must neither use nor destroy objects that its parent made. It may make its own.
 *
 * Errors. A function that can fail returns quire_status. Results go through out-pointers, and a failure leaves these
 * untouched. The library never prints, aborts or exits. A function that takes memory can return ENOMEM, one with
 * numbers or pointers EINVAL, also where this is not said. Callbacks must return: they may neither throw nor longjmp().
 *
 * Pointers. Allocators, executors, and arrays without elements may be NULL, and what is marked so; any other NULL is
 * EINVAL. Destructors accept NULL, and an object is destroyed once. Other functions without a status need valid
 * arguments. What a pointer of the caller points to need only live until the call returns, unless something else is
 * said. Texts that the library returns live as long as the object that they came from; those of codecs, presets and
 * statuses, as long as the library is loaded.
 */
#ifndef QUIRE_QUIRE_H
#define QUIRE_QUIRE_H

#include "base.h"     /* status, allocator, threads, log; rules for all structures */
#include "codec.h"    /* codecs and blocks of rows */
#include "geometry.h" /* the shape of a model */
#include "profile.h"  /* statistics for calibrated codecs */
#include "plan.h"     /* how each layer is encoded */
#include "tile.h"     /* formats, tiles, paged memory, tile lists */
#include "attend.h"   /* attention over tiles */
#include "cache.h"    /* pools, sequences, steps, batches */

#endif
