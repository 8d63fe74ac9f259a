# SPDX-License-Identifier: MIT
# What CPack leaves to be done before it packs: it strips programs and shared libraries, not static ones, and compresses no manuals.
file(GLOB_RECURSE archives "${CPACK_TEMPORARY_INSTALL_DIRECTORY}/*.a")
foreach(archive IN LISTS archives)
  execute_process(COMMAND "${CPACK_STRIP}" --strip-debug --enable-deterministic-archives "${archive}" COMMAND_ERROR_IS_FATAL ANY)
endforeach()
file(GLOB_RECURSE texts "${CPACK_TEMPORARY_INSTALL_DIRECTORY}/*.1" "${CPACK_TEMPORARY_INSTALL_DIRECTORY}/changelog")
foreach(text IN LISTS texts)
  if(text MATCHES "/(man1/[^/]*\\.1|doc/[^/]*/changelog)$")
    execute_process(COMMAND gzip -9n "${text}" COMMAND_ERROR_IS_FATAL ANY)
  endif()
endforeach()
