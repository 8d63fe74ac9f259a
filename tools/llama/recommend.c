/* SPDX-License-Identifier: MIT */
#include "llama/recommend.h"

#include "common/system.h"

const char *const recommend_presets[RECOMMEND_PRESETS] = {"safe", "balanced", "small"};

int recommend_choose(const recommend_offer offers[RECOMMEND_PRESETS], double room)
{
    for (int i = 0; i < RECOMMEND_PRESETS; i++)
        if (offers[i].bytes <= room && !offers[i].is_warned) return i;
    for (int i = 0; i < RECOMMEND_PRESETS; i++)
        if (offers[i].bytes <= room) return i;
    return RECOMMEND_SMALLEST;
}

static bool make_offer(recommend_offer *out, const model *m, const model_use *use, const char *policy,
                       const quire_profile *profile, char *why, size_t size)
{
    model_plan plan;
    quire_status status = model_plan_create(&plan, m, policy, profile, why, size);
    if (status) return false;
    *out = (recommend_offer){model_kv_bytes(m, &plan, use), quire_plan_warning(plan.plan)};
    model_plan_destroy(&plan);
    return true;
}

bool recommend(recommendation *out, const model *m, const model_use *use, const quire_profile *profile,
               double room, char *why, size_t size)
{
    recommendation r = {.room = room};
    for (int i = 0; i < RECOMMEND_PRESETS; i++)
        if (!make_offer(&r.offers[i], m, use, recommend_presets[i], profile, why, size)) return false;
    r.preset = recommend_choose(r.offers, room);
    r.policy = recommend_presets[r.preset];
    r.fits = r.offers[r.preset].bytes <= room;
    *out = r;
    return true;
}

static double available_bytes(void)
{
    uint64_t bytes = system_free_bytes();
    return (double)(bytes ? bytes : system_memory_bytes());
}

double recommend_room(const model *m, uint64_t ram)
{
    double room = (ram ? (double)ram : available_bytes()) - (double)m->file_bytes;
    return room > 0 ? room : 0;
}
