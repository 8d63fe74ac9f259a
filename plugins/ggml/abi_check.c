/* SPDX-License-Identifier: MIT */
/*
 * Compares host.h with real headers of ggml (-DQUIRE_GGML_SOURCE=<folder>). It compiles to nothing; an assertion that
 * fails names what has moved.
 */
#include "ggml.h"
#include "ggml-backend.h"
#include "ggml-backend-impl.h"
#include "host.h"

#define SAME_SIZE(theirs, ours) _Static_assert(sizeof(struct theirs) == sizeof(struct ours), #theirs)
#define SAME_PLACE(theirs, ours, member) \
    _Static_assert(offsetof(struct theirs, member) == offsetof(struct ours, member), #theirs "." #member)

SAME_SIZE(ggml_tensor, host_tensor);
SAME_PLACE(ggml_tensor, host_tensor, type);
SAME_PLACE(ggml_tensor, host_tensor, buffer);
SAME_PLACE(ggml_tensor, host_tensor, ne);
SAME_PLACE(ggml_tensor, host_tensor, nb);
SAME_PLACE(ggml_tensor, host_tensor, op);
SAME_PLACE(ggml_tensor, host_tensor, op_params);
SAME_PLACE(ggml_tensor, host_tensor, flags);
SAME_PLACE(ggml_tensor, host_tensor, src);
SAME_PLACE(ggml_tensor, host_tensor, view_src);
SAME_PLACE(ggml_tensor, host_tensor, view_offs);
SAME_PLACE(ggml_tensor, host_tensor, data);
SAME_PLACE(ggml_tensor, host_tensor, name);
SAME_PLACE(ggml_tensor, host_tensor, extra);
_Static_assert(GGML_MAX_SRC == HOST_MAX_SRC && GGML_MAX_NAME == HOST_MAX_NAME, "limits");
_Static_assert(GGML_TENSOR_FLAG_COMPUTE == HOST_FLAG_COMPUTE, "flag of nodes to compute");
_Static_assert((int)GGML_STATUS_SUCCESS == HOST_SUCCESS && (int)GGML_STATUS_FAILED == HOST_FAILED &&
                   (int)GGML_STATUS_ALLOC_FAILED == HOST_ALLOC_FAILED,
               "status");
_Static_assert((int)GGML_BACKEND_DEVICE_TYPE_CPU == HOST_DEVICE_CPU &&
                   (int)GGML_BACKEND_DEVICE_TYPE_GPU == HOST_DEVICE_GPU &&
                   (int)GGML_BACKEND_DEVICE_TYPE_IGPU == HOST_DEVICE_IGPU,
               "kinds of devices");
_Static_assert((int)GGML_LOG_LEVEL_INFO == HOST_LOG_INFO && (int)GGML_LOG_LEVEL_WARN == HOST_LOG_WARN &&
                   (int)GGML_LOG_LEVEL_ERROR == HOST_LOG_ERROR,
               "levels of the log");

SAME_SIZE(ggml_init_params, host_init_params);
SAME_PLACE(ggml_init_params, host_init_params, no_alloc);

SAME_SIZE(ggml_backend_buffer_i, host_buffer_i);
SAME_PLACE(ggml_backend_buffer_i, host_buffer_i, get_base);
SAME_PLACE(ggml_backend_buffer_i, host_buffer_i, init_tensor);
SAME_PLACE(ggml_backend_buffer_i, host_buffer_i, memset_tensor);
SAME_PLACE(ggml_backend_buffer_i, host_buffer_i, set_tensor);
SAME_PLACE(ggml_backend_buffer_i, host_buffer_i, get_tensor);
SAME_PLACE(ggml_backend_buffer_i, host_buffer_i, cpy_tensor);
SAME_PLACE(ggml_backend_buffer_i, host_buffer_i, clear);
SAME_PLACE(ggml_backend_buffer_i, host_buffer_i, reset);
SAME_PLACE(ggml_backend_buffer, host_buffer, buft);
SAME_PLACE(ggml_backend_buffer, host_buffer, context);
SAME_PLACE(ggml_backend_buffer, host_buffer, size);

SAME_SIZE(ggml_backend_i, host_backend_i);
SAME_PLACE(ggml_backend_i, host_backend_i, free);
SAME_PLACE(ggml_backend_i, host_backend_i, synchronize);
SAME_PLACE(ggml_backend_i, host_backend_i, graph_compute);
SAME_SIZE(ggml_backend, host_backend);
SAME_PLACE(ggml_backend, host_backend, iface);
SAME_PLACE(ggml_backend, host_backend, device);

SAME_SIZE(ggml_backend_device_i, host_device_i);
SAME_PLACE(ggml_backend_device_i, host_device_i, get_memory);
SAME_PLACE(ggml_backend_device_i, host_device_i, get_type);
SAME_PLACE(ggml_backend_device_i, host_device_i, get_props);
SAME_PLACE(ggml_backend_device_i, host_device_i, init_backend);
SAME_PLACE(ggml_backend_device_i, host_device_i, get_buffer_type);
SAME_PLACE(ggml_backend_device_i, host_device_i, supports_op);
SAME_PLACE(ggml_backend_device_i, host_device_i, supports_buft);
SAME_PLACE(ggml_backend_device_i, host_device_i, offload_op);
SAME_SIZE(ggml_backend_device, host_device);
SAME_SIZE(ggml_backend_dev_props, host_device_props);
SAME_PLACE(ggml_backend_dev_props, host_device_props, type);
SAME_PLACE(ggml_backend_dev_props, host_device_props, caps.mmap_support);
SAME_SIZE(ggml_backend_reg, host_reg);
SAME_PLACE(ggml_backend_reg, host_reg, iface);

#define BUFT_ENTRY(member) (offsetof(struct ggml_backend_buffer_type, iface.member) / sizeof(void *))
#define BUFT_IS(name, alloc, alignment, alloc_size, host_entry, n)                                          \
    _Static_assert(BUFT_ENTRY(get_name) == (name) && BUFT_ENTRY(alloc_buffer) == (alloc) &&                 \
                       BUFT_ENTRY(get_alignment) == (alignment) &&                                          \
                       BUFT_ENTRY(get_alloc_size) == (alloc_size) && BUFT_ENTRY(is_host) == (host_entry) && \
                       offsetof(struct ggml_backend_buffer_type, device) == (n) * sizeof(void *),           \
                   "table of buffer types")
#if GGML_BACKEND_API_VERSION == 2
BUFT_IS(0, 1, 2, 4, 5, 6);
#elif GGML_BACKEND_API_VERSION == 3
BUFT_IS(0, 1, 3, 5, 7, 8);
#else
#error "this version of ggml's backend API is not supported; add it to host.h and host.c"
#endif
