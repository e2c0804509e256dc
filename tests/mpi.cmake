# SPDX-License-Identifier: Apache-2.0
# Sets FERRY_MPI_WORKS: whether two ranks under this machine's mpiexec are ranks of one MPI job. Those of Ubuntu 24.04's
# MPICH are a job each, whatever they run. The suites that compare with MPI are for an MPI that works.
set(FERRY_MPI_WORKS FALSE)
if(MPI_C_FOUND)
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/mpi_works.c "#include <mpi.h>
int main(int argc, char **argv)
{
	int size;
	MPI_Init(&argc, &argv);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	MPI_Finalize();
	return size != 2;
}
")
  try_compile(FERRY_MPI_COMPILES ${CMAKE_CURRENT_BINARY_DIR}/mpi_works ${CMAKE_CURRENT_BINARY_DIR}/mpi_works.c
    LINK_LIBRARIES MPI::MPI_C COPY_FILE ${CMAKE_CURRENT_BINARY_DIR}/mpi_works_probe)
  if(FERRY_MPI_COMPILES)
    execute_process(COMMAND ${MPIEXEC_EXECUTABLE} -n 2 ${CMAKE_CURRENT_BINARY_DIR}/mpi_works_probe
      RESULT_VARIABLE result OUTPUT_QUIET ERROR_QUIET TIMEOUT 60)
    if(result EQUAL 0)
      set(FERRY_MPI_WORKS TRUE)
    endif()
  endif()
endif()
if(NOT FERRY_MPI_WORKS)
  message(NOTICE "Two ranks under mpiexec (${MPIEXEC_EXECUTABLE}) are no MPI job of two, or there is no MPI: the tests "
    "that compare with MPI are left out.")
endif()
