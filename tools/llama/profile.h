/* SPDX-License-Identifier: MIT */
/* profile: profiles from files, named or beside the model. */
#ifndef QUIRE_TOOLS_PROFILE_H
#define QUIRE_TOOLS_PROFILE_H

#include "common/place.h"
#include "llama/model.h"

/* EIO: the file cannot be read. */
quire_status profile_load(quire_profile **out, const char *path);
/* Why it could not be loaded. */
const char *profile_fault(const char *path, quire_status status);

typedef enum profile_found {
    PROFILE_NONE,
    PROFILE_FITS,
    PROFILE_UNREADABLE,
    PROFILE_OF_ANOTHER_MODEL
} profile_found;

/* Loads the profile beside a model (model_profile_path()) if there is one. *out is set only if it fits. Otherwise commands say
 * so and go on: nobody asked for that profile. */
profile_found profile_find_beside(quire_profile **out, char path[PLACE_SIZE], const model *m,
                                  const char *model_path);

#endif
