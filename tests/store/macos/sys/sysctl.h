/* SPDX-License-Identifier: MIT */
/* Stands for a header that Linux does not have: sdk.h declares what is used of it. */
