/* SPDX-License-Identifier: MIT */
/* host_settings: what the device will be told by the environment and by the file that QUIRE_CONFIG names. */
#ifndef QUIRE_TOOLS_HOST_SETTINGS_H
#define QUIRE_TOOLS_HOST_SETTINGS_H

/*
 * As plugins/ggml/config.c reads them: the variable, or the key of the file; an empty value is none, also against the file.
 * What is wrong with the file is the device's to say. The value stays; NULL: not given.
 */
const char *host_setting(const char *variable, const char *key);

/* The backend that the device loads too: the one that was chosen, or that GGML_BACKEND_PATH names now. NULL: none. */
const char *host_setting_chain(void);

#endif
