# SPDX-License-Identifier: MIT
# What is installed, and in which component: library, development, store, storedevelopment, device, tools. QuirePackages.cmake makes packages of them.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(quire_cmake_dir "${CMAKE_INSTALL_LIBDIR}/cmake/quire")

# --- licences: with every component, because each can be installed without the others. Debian wants them elsewhere (QuirePack.cmake). --------
set(quire_doc_dir "${CMAKE_INSTALL_DATADIR}/doc/quire")
set(quire_components library development)
if(TARGET quire_store_shared)
  list(APPEND quire_components store storedevelopment)
endif()
if(TARGET ggml-quire)
  list(APPEND quire_components device)
endif()
if(TARGET quire_tool)
  list(APPEND quire_components tools)
endif()
foreach(component IN LISTS quire_components)
  install(FILES LICENSE docs/licences.md DESTINATION "${quire_doc_dir}" COMPONENT ${component})
endforeach()

# --- library, development ---------------------------------------------------------------------------
install(TARGETS quire_shared EXPORT quireTargets INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT library NAMELINK_COMPONENT development)
# Files of its own: distributions that ship no static libraries delete it with them.
install(TARGETS quire EXPORT quireStaticTargets INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT development)
install(DIRECTORY include/quire DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT development
        FILES_MATCHING PATTERN "*.h" PATTERN store.h EXCLUDE)
install(EXPORT quireTargets NAMESPACE quire:: DESTINATION "${quire_cmake_dir}" COMPONENT development)
install(EXPORT quireStaticTargets NAMESPACE quire:: DESTINATION "${quire_cmake_dir}" COMPONENT development)
configure_package_config_file(cmake/quireConfig.cmake.in "${PROJECT_BINARY_DIR}/quireConfig.cmake"
                              INSTALL_DESTINATION "${quire_cmake_dir}")
# Before 1.0 a new minor version may change the interface.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/quireConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
# Relative, so that an installation can be moved. Some distributions give absolute folders.
set(quire_pc_prefix "${CMAKE_INSTALL_PREFIX}")
if(NOT IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  file(RELATIVE_PATH up "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/prefix")
  string(REGEX REPLACE "/$" "" up "${up}")
  set(quire_pc_prefix "\${pcfiledir}/${up}")
endif()
foreach(name LIBDIR INCLUDEDIR)
  set(quire_pc_${name} "${CMAKE_INSTALL_${name}}")
  if(NOT IS_ABSOLUTE "${CMAKE_INSTALL_${name}}")
    set(quire_pc_${name} "\${prefix}/${CMAKE_INSTALL_${name}}")
  endif()
endforeach()
configure_file(cmake/quire.pc.in "${PROJECT_BINARY_DIR}/quire.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/quireConfig.cmake" "${PROJECT_BINARY_DIR}/quireConfigVersion.cmake"
        DESTINATION "${quire_cmake_dir}" COMPONENT development)
install(FILES "${PROJECT_BINARY_DIR}/quire.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT development)

# --- store: the shared library only; a static one would need all that it needs from the user. A file of its own says what is exported: who has
# libquire without the store finds it all the same. -------------------------------------------------------------------------------------------
if(TARGET quire_store_shared)
  install(TARGETS quire_store_shared EXPORT quireStoreTargets INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
          LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT store NAMELINK_COMPONENT storedevelopment)
  install(FILES include/quire/store.h DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/quire" COMPONENT storedevelopment)
  install(EXPORT quireStoreTargets NAMESPACE quire:: DESTINATION "${quire_cmake_dir}" COMPONENT storedevelopment)
  configure_file(cmake/quire_store.pc.in "${PROJECT_BINARY_DIR}/quire_store.pc" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/quire_store.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT storedevelopment)
  get_property(valkey_source GLOBAL PROPERTY quire_valkey_source)
  if(valkey_source) # built into it, and into the command
    foreach(component store tools)
      if(NOT component STREQUAL "tools" OR TARGET quire_tool)
        install(FILES "${valkey_source}/COPYING" DESTINATION "${quire_doc_dir}" RENAME copyright.libvalkey COMPONENT ${component})
      endif()
    endforeach()
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
    install(FILES third_party/yyjson/LICENSE DESTINATION "${quire_doc_dir}" RENAME copyright.yyjson COMPONENT tools)
  endif()
  install(FILES eval/text/calibrate.txt eval/text/README.md DESTINATION "${CMAKE_INSTALL_DATADIR}/quire/eval/text" COMPONENT tools)
endif()
