# SPDX-License-Identifier: MIT
# CPack strips programs and shared libraries; this takes the debug information out of the static one.
file(GLOB_RECURSE archives "${CPACK_TEMPORARY_INSTALL_DIRECTORY}/*.a")
foreach(archive IN LISTS archives)
  execute_process(COMMAND strip --strip-debug "${archive}" COMMAND_ERROR_IS_FATAL ANY)
endforeach()
