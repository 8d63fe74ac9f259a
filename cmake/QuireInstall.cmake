# SPDX-License-Identifier: MIT
# What is installed, in which component, and the packages that are made of it. Components: library, store, development, device,
# tools.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(quire_cmake_dir "${CMAKE_INSTALL_LIBDIR}/cmake/quire")

# --- library, development ---------------------------------------------------------------------------
install(TARGETS quire_shared EXPORT quireTargets
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT library NAMELINK_COMPONENT development)
install(TARGETS quire EXPORT quireTargets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT development)
install(DIRECTORY include/quire DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT development FILES_MATCHING PATTERN "*.h")
install(EXPORT quireTargets NAMESPACE quire:: DESTINATION "${quire_cmake_dir}" COMPONENT development)
configure_package_config_file(cmake/quireConfig.cmake.in "${PROJECT_BINARY_DIR}/quireConfig.cmake"
                              INSTALL_DESTINATION "${quire_cmake_dir}")
# Before 1.0 a new minor version may change the interface.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/quireConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
# Relative, so that an installation can be moved.
file(RELATIVE_PATH quire_pc_prefix "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/prefix")
configure_file(cmake/quire.pc.in "${PROJECT_BINARY_DIR}/quire.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/quireConfig.cmake" "${PROJECT_BINARY_DIR}/quireConfigVersion.cmake"
        DESTINATION "${quire_cmake_dir}" COMPONENT development)
install(FILES "${PROJECT_BINARY_DIR}/quire.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT development)

# --- store: the shared library only; a static one would need all that it needs from the user -----------
if(TARGET quire_store_shared)
  install(TARGETS quire_store_shared EXPORT quireTargets
          LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT store NAMELINK_COMPONENT development)
  configure_file(cmake/quire_store.pc.in "${PROJECT_BINARY_DIR}/quire_store.pc" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/quire_store.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT development)
  set(quire_store_package "store:libquire-store${quire_soversion}")
  get_property(valkey_source GLOBAL PROPERTY quire_valkey_source)
  if(valkey_source) # built into it
    install(FILES "${valkey_source}/COPYING" DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/libquire-store${quire_soversion}"
            RENAME copyright.libvalkey COMPONENT store)
    if(TARGET quire_tool) # and into the command
      install(FILES "${valkey_source}/COPYING" DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/quire" RENAME copyright.libvalkey COMPONENT tools)
    endif()
  endif()
endif()

# --- device: not in the linker's path, because programs load it by its name ---------------------------
if(TARGET ggml-quire)
  install(TARGETS ggml-quire LIBRARY DESTINATION lib/quire COMPONENT device)
endif()

# --- tools --------------------------------------------------------------------------------------------
if(TARGET quire_tool)
  install(TARGETS quire_tool RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT tools)
  if(TARGET quire_manuals)
    install(DIRECTORY "${PROJECT_BINARY_DIR}/share/man/man1" DESTINATION "${CMAKE_INSTALL_MANDIR}" COMPONENT tools)
    install(FILES "${PROJECT_BINARY_DIR}/share/bash-completion/completions/quire"
            DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions" COMPONENT tools)
  endif()
  if(TARGET quire_json) # quire serve
    install(FILES packaging/systemd/quire-serve@.service DESTINATION lib/systemd/system COMPONENT tools)
    install(FILES third_party/yyjson/LICENSE DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/quire" RENAME copyright.yyjson COMPONENT tools)
  endif()
  install(FILES eval/text/calibrate.txt eval/text/README.md DESTINATION "${CMAKE_INSTALL_DATADIR}/quire/eval/text" COMPONENT tools)
endif()

# --- packages: cpack -G DEB, cpack --config CPackSourceConfig.cmake -------------------------------------
set(packages "library:libquire${quire_soversion}" ${quire_store_package} development:libquire-dev device:quire-llama tools:quire)
set(CPACK_COMPONENTS_ALL)
# The first line is the summary.
set(about "Quire keeps the KV cache of a language model in 2 to 8 bits per value and
computes attention on the compressed bytes, on CPUs.")
set(CPACK_DEBIAN_LIBRARY_DESCRIPTION "attention on a compressed KV cache - library
${about}
This package has the shared library, for programs that link it.")
set(CPACK_DEBIAN_STORE_DESCRIPTION "attention on a compressed KV cache - store of prompt prefixes
${about}
This package has the library that keeps finished pages on disk and on
Valkey or Redis servers.")
set(CPACK_DEBIAN_DEVELOPMENT_DESCRIPTION "attention on a compressed KV cache - development files
${about}
This package has headers, the static library, and files for pkg-config
and CMake.")
set(CPACK_DEBIAN_DEVICE_DESCRIPTION "attention on a compressed KV cache - device for llama.cpp
${about}
This package has the device that an unmodified llama.cpp loads.")
set(CPACK_DEBIAN_TOOLS_DESCRIPTION "attention on a compressed KV cache - command quire
${about}
This package has the command that plans memory, starts llama.cpp programs
with the device, and serves prompts from a store.")
# Debian's own form of a changelog, in every package. SOURCE_DATE_EPOCH sets its date.
set(QUIRE_MAINTAINER "Quire maintainers <quire@localhost>" CACHE STRING "Name and address in the Debian packages")
string(TIMESTAMP package_date "%a, %d %b %Y %H:%M:%S +0000" UTC)
configure_file(cmake/changelog.in "${PROJECT_BINARY_DIR}/changelog" @ONLY)
foreach(package IN LISTS packages)
  string(REGEX MATCH "^([a-z]+):(.*)$" unused "${package}")
  set(component "${CMAKE_MATCH_1}")
  set(name "${CMAKE_MATCH_2}")
  string(TOUPPER "${component}" upper)
  list(APPEND CPACK_COMPONENTS_ALL ${component})
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME "${name}")
  # Every package carries the licences of what is in it.
  install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/${name}" RENAME copyright COMPONENT ${component})
  install(FILES "${PROJECT_BINARY_DIR}/changelog" DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/${name}" COMPONENT ${component})
  install(FILES docs/licences.md DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/${name}" COMPONENT ${component})
endforeach()
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_STORE_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVICE_PACKAGE_SECTION science)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION science)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "libquire${quire_soversion} (= ${PROJECT_VERSION})")
if(quire_store_package)
  string(APPEND CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS ", libquire-store${quire_soversion} (= ${PROJECT_VERSION})")
  set(CPACK_DEBIAN_STORE_PACKAGE_DEPENDS "libquire${quire_soversion} (= ${PROJECT_VERSION})")
endif()
set(CPACK_DEBIAN_TOOLS_PACKAGE_RECOMMENDS "quire-llama")
set(CPACK_GENERATOR DEB)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}")
set(CPACK_STRIP_FILES ON)
if(CMAKE_CROSSCOMPILING AND CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
  set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE arm64)
endif()
set(CPACK_DEBIAN_PACKAGE_SOURCE quire)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON) # what packages of other programs will depend on
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")
set(CPACK_PRE_BUILD_SCRIPTS "${CMAKE_CURRENT_LIST_DIR}/QuirePack.cmake")
set(CPACK_POST_BUILD_SCRIPTS "${CMAKE_CURRENT_LIST_DIR}/QuireControl.cmake")
set(CPACK_STRIP "${CMAKE_STRIP}")
set(CPACK_PACKAGE_NAME quire)
set(CPACK_PACKAGE_CONTACT "${QUIRE_MAINTAINER}")
set(CPACK_SOURCE_GENERATOR TGZ)
set(CPACK_SOURCE_PACKAGE_FILE_NAME "quire-${PROJECT_VERSION}")
set(CPACK_SOURCE_IGNORE_FILES "/build/" "/\\\\.git/" "/\\\\.git$" "__pycache__" "\\\\.swp$" "~$")
include(CPack)
