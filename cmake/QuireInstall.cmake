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
  endif()
  install(FILES eval/text/calibrate.txt eval/text/README.md DESTINATION "${CMAKE_INSTALL_DATADIR}/quire/eval/text" COMPONENT tools)
endif()

# --- packages: cpack -G DEB, cpack --config CPackSourceConfig.cmake -------------------------------------
set(packages "library:libquire${quire_soversion}" ${quire_store_package} development:libquire-dev device:quire-llama tools:quire)
set(CPACK_COMPONENTS_ALL)
set(CPACK_DEBIAN_LIBRARY_DESCRIPTION "attention over a KV cache of 2 to 8 bits per value: library")
set(CPACK_DEBIAN_STORE_DESCRIPTION "attention over a KV cache of 2 to 8 bits per value: pages that outlive the process")
set(CPACK_DEBIAN_DEVELOPMENT_DESCRIPTION "attention over a KV cache of 2 to 8 bits per value: headers, static library")
set(CPACK_DEBIAN_DEVICE_DESCRIPTION "attention over a KV cache of 2 to 8 bits per value: device for llama.cpp")
set(CPACK_DEBIAN_TOOLS_DESCRIPTION "attention over a KV cache of 2 to 8 bits per value: the command quire")
foreach(package IN LISTS packages)
  string(REGEX MATCH "^([a-z]+):(.*)$" unused "${package}")
  set(component "${CMAKE_MATCH_1}")
  set(name "${CMAKE_MATCH_2}")
  string(TOUPPER "${component}" upper)
  list(APPEND CPACK_COMPONENTS_ALL ${component})
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME "${name}")
  # Every package carries the licences of what is in it.
  install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/${name}" RENAME copyright COMPONENT ${component})
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
set(CPACK_PRE_BUILD_SCRIPTS "${CMAKE_CURRENT_LIST_DIR}/QuireStrip.cmake")
set(CPACK_PACKAGE_NAME quire)
set(CPACK_PACKAGE_CONTACT "Quire maintainers <quire@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "attention over a KV cache of 2 to 8 bits per value")
set(CPACK_SOURCE_GENERATOR TGZ)
set(CPACK_SOURCE_PACKAGE_FILE_NAME "quire-${PROJECT_VERSION}")
set(CPACK_SOURCE_IGNORE_FILES "/build/" "/\\\\.git/" "/\\\\.git$" "__pycache__" "\\\\.swp$" "~$")
include(CPack)
