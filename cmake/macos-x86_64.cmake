# SPDX-License-Identifier: MIT
# macOS 11 or later on Intel processors.
set(quire_macos_processor x86_64)
include("${CMAKE_CURRENT_LIST_DIR}/macos.cmake")
