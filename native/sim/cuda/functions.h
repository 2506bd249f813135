/*
 * Every function of NVIDIA's libcuda that cuGetProcAddress knows, but those for graphics: its name there, the
 * CUDA version that its variant came with, and what the exported symbol has behind the name. NVIDIA's
 * cudaTypedefs.h has the same facts. The simulated libcuda gives out those that it has.
 *
 * ONE: one symbol. PTSZ and PTDS: from CUDA 7.0 on there is a second one of that suffix, whose default
 * stream is the calling thread's.
 */
#ifndef XPU_SIM_CUDA_FUNCTIONS_H
#define XPU_SIM_CUDA_FUNCTIONS_H

/* clang-format off */
#define CUDA_FUNCTIONS(ONE, PTSZ, PTDS) \
    ONE(cuArray3DCreate, 2000, ) ONE(cuArray3DCreate, 3020, _v2) ONE(cuArray3DGetDescriptor, 2000, ) \
    ONE(cuArray3DGetDescriptor, 3020, _v2) ONE(cuArrayCreate, 2000, ) ONE(cuArrayCreate, 3020, _v2) \
    ONE(cuArrayDestroy, 2000, ) ONE(cuArrayGetDescriptor, 2000, ) ONE(cuArrayGetDescriptor, 3020, _v2) \
    ONE(cuArrayGetMemoryRequirements, 11060, ) ONE(cuArrayGetPlane, 11020, ) \
    ONE(cuArrayGetSparseProperties, 11010, ) ONE(cuCoredumpGetAttribute, 12010, ) \
    ONE(cuCoredumpGetAttributeGlobal, 12010, ) ONE(cuCoredumpSetAttribute, 12010, ) \
    ONE(cuCoredumpSetAttributeGlobal, 12010, ) ONE(cuCtxAttach, 2000, ) ONE(cuCtxCreate, 2000, ) \
    ONE(cuCtxCreate, 3020, _v2) ONE(cuCtxCreate, 11040, _v3) ONE(cuCtxCreate, 12050, _v4) \
    ONE(cuCtxDestroy, 2000, ) ONE(cuCtxDestroy, 4000, _v2) ONE(cuCtxDetach, 2000, ) \
    ONE(cuCtxDisablePeerAccess, 4000, ) ONE(cuCtxEnablePeerAccess, 4000, ) ONE(cuCtxFromGreenCtx, 12040, ) \
    ONE(cuCtxGetApiVersion, 3020, ) ONE(cuCtxGetCacheConfig, 3020, ) ONE(cuCtxGetCurrent, 4000, ) \
    ONE(cuCtxGetDevice, 2000, ) ONE(cuCtxGetDevice, 13000, _v2) ONE(cuCtxGetExecAffinity, 11040, ) \
    ONE(cuCtxGetFlags, 7000, ) ONE(cuCtxGetId, 12000, ) ONE(cuCtxGetLimit, 3010, ) \
    ONE(cuCtxGetSharedMemConfig, 4020, ) ONE(cuCtxGetStreamPriorityRange, 5050, ) \
    ONE(cuCtxPopCurrent, 2000, ) ONE(cuCtxPopCurrent, 4000, _v2) ONE(cuCtxPushCurrent, 2000, ) \
    ONE(cuCtxPushCurrent, 4000, _v2) ONE(cuCtxResetPersistingL2Cache, 11000, ) \
    ONE(cuCtxSetCacheConfig, 3020, ) ONE(cuCtxSetCurrent, 4000, ) ONE(cuCtxSetFlags, 12010, ) \
    ONE(cuCtxSetLimit, 3010, ) ONE(cuCtxSetSharedMemConfig, 4020, ) ONE(cuCtxSynchronize, 2000, ) \
    ONE(cuCtxSynchronize, 13000, _v2) ONE(cuDestroyExternalMemory, 10000, ) \
    ONE(cuDestroyExternalSemaphore, 10000, ) ONE(cuDeviceCanAccessPeer, 4000, ) \
    ONE(cuDeviceComputeCapability, 2000, ) ONE(cuDeviceGet, 2000, ) ONE(cuDeviceGetAttribute, 2000, ) \
    ONE(cuDeviceGetByPCIBusId, 4010, ) ONE(cuDeviceGetCount, 2000, ) \
    ONE(cuDeviceGetDefaultMemPool, 11020, ) ONE(cuDeviceGetDevResource, 12040, ) \
    ONE(cuDeviceGetExecAffinitySupport, 11040, ) ONE(cuDeviceGetGraphMemAttribute, 11040, ) \
    ONE(cuDeviceGetLuid, 10000, ) ONE(cuDeviceGetMemPool, 11020, ) ONE(cuDeviceGetName, 2000, ) \
    ONE(cuDeviceGetNvSciSyncAttributes, 10020, ) ONE(cuDeviceGetP2PAttribute, 8000, ) \
    ONE(cuDeviceGetPCIBusId, 4010, ) ONE(cuDeviceGetProperties, 2000, ) \
    ONE(cuDeviceGetTexture1DLinearMaxWidth, 11010, ) ONE(cuDeviceGetUuid, 9020, ) \
    ONE(cuDeviceGetUuid, 11040, _v2) ONE(cuDeviceGraphMemTrim, 11040, ) \
    ONE(cuDevicePrimaryCtxGetState, 7000, ) ONE(cuDevicePrimaryCtxRelease, 7000, ) \
    ONE(cuDevicePrimaryCtxRelease, 11000, _v2) ONE(cuDevicePrimaryCtxReset, 7000, ) \
    ONE(cuDevicePrimaryCtxReset, 11000, _v2) ONE(cuDevicePrimaryCtxRetain, 7000, ) \
    ONE(cuDevicePrimaryCtxSetFlags, 7000, ) ONE(cuDevicePrimaryCtxSetFlags, 11000, _v2) \
    ONE(cuDeviceSetGraphMemAttribute, 11040, ) ONE(cuDeviceSetMemPool, 11020, ) \
    ONE(cuDeviceTotalMem, 2000, ) ONE(cuDeviceTotalMem, 3020, _v2) ONE(cuDriverGetVersion, 2020, ) \
    ONE(cuEventCreate, 2000, ) ONE(cuEventDestroy, 2000, ) ONE(cuEventDestroy, 4000, _v2) \
    ONE(cuEventElapsedTime, 2000, ) ONE(cuEventElapsedTime, 12080, _v2) ONE(cuEventQuery, 2000, ) \
    PTSZ(cuEventRecord, 2000, ) PTSZ(cuEventRecordWithFlags, 11010, ) ONE(cuEventSynchronize, 2000, ) \
    ONE(cuExternalMemoryGetMappedBuffer, 10000, ) ONE(cuExternalMemoryGetMappedMipmappedArray, 10000, ) \
    ONE(cuFlushGPUDirectRDMAWrites, 11030, ) ONE(cuFuncGetAttribute, 2020, ) ONE(cuFuncGetModule, 11000, ) \
    ONE(cuFuncGetName, 12030, ) ONE(cuFuncGetParamInfo, 12040, ) ONE(cuFuncIsLoaded, 12040, ) \
    ONE(cuFuncLoad, 12040, ) ONE(cuFuncSetAttribute, 9000, ) ONE(cuFuncSetBlockShape, 2000, ) \
    ONE(cuFuncSetCacheConfig, 3000, ) ONE(cuFuncSetSharedMemConfig, 4020, ) \
    ONE(cuFuncSetSharedSize, 2000, ) ONE(cuGetErrorName, 6000, ) ONE(cuGetErrorString, 6000, ) \
    ONE(cuGetExportTable, 3000, ) ONE(cuGetProcAddress, 11030, ) ONE(cuGetProcAddress, 12000, _v2) \
    ONE(cuGraphAddBatchMemOpNode, 11070, ) ONE(cuGraphAddChildGraphNode, 10000, ) \
    ONE(cuGraphAddDependencies, 10000, ) ONE(cuGraphAddDependencies, 12030, _v2) \
    ONE(cuGraphAddEmptyNode, 10000, ) ONE(cuGraphAddEventRecordNode, 11010, ) \
    ONE(cuGraphAddEventWaitNode, 11010, ) ONE(cuGraphAddExternalSemaphoresSignalNode, 11020, ) \
    ONE(cuGraphAddExternalSemaphoresWaitNode, 11020, ) ONE(cuGraphAddHostNode, 10000, ) \
    ONE(cuGraphAddKernelNode, 10000, ) ONE(cuGraphAddKernelNode, 12000, _v2) \
    ONE(cuGraphAddMemAllocNode, 11040, ) ONE(cuGraphAddMemFreeNode, 11040, ) \
    ONE(cuGraphAddMemcpyNode, 10000, ) ONE(cuGraphAddMemsetNode, 10000, ) ONE(cuGraphAddNode, 12020, ) \
    ONE(cuGraphAddNode, 12030, _v2) ONE(cuGraphAddNode, 13040, _v3) \
    ONE(cuGraphBatchMemOpNodeGetParams, 11070, ) \
    ONE(cuGraphBatchMemOpNodeSetParams, 11070, ) ONE(cuGraphChildGraphNodeGetGraph, 10000, ) \
    ONE(cuGraphClone, 10000, ) ONE(cuGraphCreate, 10000, ) ONE(cuGraphDebugDotPrint, 11030, ) \
    ONE(cuGraphDestroy, 10000, ) ONE(cuGraphDestroyNode, 10000, ) \
    ONE(cuGraphEventRecordNodeGetEvent, 11010, ) ONE(cuGraphEventRecordNodeSetEvent, 11010, ) \
    ONE(cuGraphEventWaitNodeGetEvent, 11010, ) ONE(cuGraphEventWaitNodeSetEvent, 11010, ) \
    ONE(cuGraphExecBatchMemOpNodeSetParams, 11070, ) ONE(cuGraphExecChildGraphNodeSetParams, 11010, ) \
    ONE(cuGraphExecDestroy, 10000, ) ONE(cuGraphExecEventRecordNodeSetEvent, 11010, ) \
    ONE(cuGraphExecEventWaitNodeSetEvent, 11010, ) \
    ONE(cuGraphExecExternalSemaphoresSignalNodeSetParams, 11020, ) \
    ONE(cuGraphExecExternalSemaphoresWaitNodeSetParams, 11020, ) ONE(cuGraphExecGetFlags, 12000, ) \
    ONE(cuGraphExecHostNodeSetParams, 10020, ) ONE(cuGraphExecKernelNodeSetParams, 10010, ) \
    ONE(cuGraphExecKernelNodeSetParams, 12000, _v2) ONE(cuGraphExecMemcpyNodeSetParams, 10020, ) \
    ONE(cuGraphExecMemsetNodeSetParams, 10020, ) ONE(cuGraphExecNodeSetParams, 12020, ) \
    ONE(cuGraphExecUpdate, 10020, ) ONE(cuGraphExecUpdate, 12000, _v2) \
    ONE(cuGraphExternalSemaphoresSignalNodeGetParams, 11020, ) \
    ONE(cuGraphExternalSemaphoresSignalNodeSetParams, 11020, ) \
    ONE(cuGraphExternalSemaphoresWaitNodeGetParams, 11020, ) \
    ONE(cuGraphExternalSemaphoresWaitNodeSetParams, 11020, ) ONE(cuGraphGetEdges, 10000, ) \
    ONE(cuGraphGetEdges, 12030, _v2) ONE(cuGraphGetNodes, 10000, ) ONE(cuGraphGetRootNodes, 10000, ) \
    ONE(cuGraphHostNodeGetParams, 10000, ) ONE(cuGraphHostNodeSetParams, 10000, ) \
    ONE(cuGraphInstantiate, 10000, ) ONE(cuGraphInstantiate, 11000, _v2) \
    ONE(cuGraphInstantiateWithFlags, 11040, ) PTSZ(cuGraphInstantiateWithParams, 12000, ) \
    ONE(cuGraphKernelNodeCopyAttributes, 11000, ) ONE(cuGraphKernelNodeGetAttribute, 11000, ) \
    ONE(cuGraphKernelNodeGetParams, 10000, ) ONE(cuGraphKernelNodeGetParams, 12000, _v2) \
    ONE(cuGraphKernelNodeSetAttribute, 11000, ) ONE(cuGraphKernelNodeSetParams, 10000, ) \
    ONE(cuGraphKernelNodeSetParams, 12000, _v2) PTSZ(cuGraphLaunch, 10000, ) \
    ONE(cuGraphMemAllocNodeGetParams, 11040, ) ONE(cuGraphMemFreeNodeGetParams, 11040, ) \
    ONE(cuGraphMemcpyNodeGetParams, 10000, ) ONE(cuGraphMemcpyNodeSetParams, 10000, ) \
    ONE(cuGraphMemsetNodeGetParams, 10000, ) ONE(cuGraphMemsetNodeSetParams, 10000, ) \
    ONE(cuGraphNodeFindInClone, 10000, ) ONE(cuGraphNodeGetDependencies, 10000, ) \
    ONE(cuGraphNodeGetDependencies, 12030, _v2) ONE(cuGraphNodeGetDependentNodes, 10000, ) \
    ONE(cuGraphNodeGetDependentNodes, 12030, _v2) ONE(cuGraphNodeGetEnabled, 11060, ) \
    ONE(cuGraphNodeGetType, 10000, ) ONE(cuGraphNodeSetEnabled, 11060, ) ONE(cuGraphNodeSetParams, 12020, ) \
    ONE(cuGraphReleaseUserObject, 11030, ) ONE(cuGraphRemoveDependencies, 10000, ) \
    ONE(cuGraphRemoveDependencies, 12030, _v2) ONE(cuGraphRetainUserObject, 11030, ) \
    PTSZ(cuGraphUpload, 11010, ) ONE(cuGreenCtxCreate, 12040, ) ONE(cuGreenCtxDestroy, 12040, ) \
    ONE(cuImportExternalMemory, 10000, ) ONE(cuImportExternalSemaphore, 10000, ) ONE(cuInit, 2000, ) \
    ONE(cuIpcCloseMemHandle, 4010, ) ONE(cuIpcGetEventHandle, 4010, ) ONE(cuIpcGetMemHandle, 4010, ) \
    ONE(cuIpcOpenEventHandle, 4010, ) ONE(cuIpcOpenMemHandle, 4010, ) ONE(cuIpcOpenMemHandle, 11000, _v2) \
    ONE(cuKernelGetAttribute, 12000, ) ONE(cuKernelGetFunction, 12000, ) ONE(cuKernelGetLibrary, 12050, ) \
    ONE(cuKernelGetName, 12030, ) ONE(cuKernelGetParamInfo, 12040, ) ONE(cuKernelSetAttribute, 12000, ) \
    ONE(cuKernelSetCacheConfig, 12000, ) ONE(cuLaunch, 2000, ) PTSZ(cuLaunchCooperativeKernel, 9000, ) \
    ONE(cuLaunchCooperativeKernelMultiDevice, 9000, ) ONE(cuLaunchGrid, 2000, ) \
    ONE(cuLaunchGridAsync, 2000, ) PTSZ(cuLaunchHostFunc, 10000, ) PTSZ(cuLaunchKernel, 4000, ) \
    PTSZ(cuLaunchKernelEx, 11060, ) ONE(cuLibraryEnumerateKernels, 12040, ) \
    ONE(cuLibraryGetGlobal, 12000, ) ONE(cuLibraryGetKernel, 12000, ) ONE(cuLibraryGetKernelCount, 12040, ) \
    ONE(cuLibraryGetManaged, 12000, ) ONE(cuLibraryGetModule, 12000, ) \
    ONE(cuLibraryGetUnifiedFunction, 12000, ) ONE(cuLibraryLoadData, 12000, ) \
    ONE(cuLibraryLoadFromFile, 12000, ) ONE(cuLibraryUnload, 12000, ) ONE(cuLinkAddData, 5050, ) \
    ONE(cuLinkAddData, 6050, _v2) ONE(cuLinkAddFile, 5050, ) ONE(cuLinkAddFile, 6050, _v2) \
    ONE(cuLinkComplete, 5050, ) ONE(cuLinkCreate, 5050, ) ONE(cuLinkCreate, 6050, _v2) \
    ONE(cuLinkDestroy, 5050, ) ONE(cuLogicalEndpointAddDevice, 13030, ) \
    ONE(cuLogicalEndpointBindAddr, 13030, ) ONE(cuLogicalEndpointBindMem, 13030, ) \
    ONE(cuLogicalEndpointCreate, 13030, ) ONE(cuLogicalEndpointDestroy, 13030, ) \
    ONE(cuLogicalEndpointExport, 13030, ) ONE(cuLogicalEndpointGetLimits, 13030, ) \
    ONE(cuLogicalEndpointIdRelease, 13030, ) ONE(cuLogicalEndpointIdReserve, 13030, ) \
    ONE(cuLogicalEndpointImport, 13030, ) ONE(cuLogicalEndpointQuery, 13030, ) \
    ONE(cuLogicalEndpointUnbind, 13030, ) ONE(cuMemAddressFree, 10020, ) ONE(cuMemAddressReserve, 10020, ) \
    ONE(cuMemAdvise, 8000, ) ONE(cuMemAdvise, 12020, _v2) ONE(cuMemAlloc, 2000, ) \
    ONE(cuMemAlloc, 3020, _v2) PTSZ(cuMemAllocAsync, 11020, ) PTSZ(cuMemAllocFromPoolAsync, 11020, ) \
    ONE(cuMemAllocHost, 2000, ) ONE(cuMemAllocHost, 3020, _v2) ONE(cuMemAllocManaged, 6000, ) \
    ONE(cuMemAllocPitch, 2000, ) ONE(cuMemAllocPitch, 3020, _v2) ONE(cuMemCreate, 10020, ) \
    PTSZ(cuMemDiscardBatchAsync, 13000, ) ONE(cuMemExportToShareableHandle, 10020, ) ONE(cuMemFree, 2000, ) \
    ONE(cuMemFree, 3020, _v2) PTSZ(cuMemFreeAsync, 11020, ) ONE(cuMemFreeHost, 2000, ) \
    ONE(cuMemGetAccess, 10020, ) ONE(cuMemGetAddressRange, 2000, ) ONE(cuMemGetAddressRange, 3020, _v2) \
    ONE(cuMemGetAllocationGranularity, 10020, ) ONE(cuMemGetAllocationPropertiesFromHandle, 10020, ) \
    ONE(cuMemGetDefaultMemPool, 13000, ) ONE(cuMemGetHandleForAddressRange, 11070, ) \
    ONE(cuMemGetInfo, 2000, ) ONE(cuMemGetInfo, 3020, _v2) ONE(cuMemGetMemPool, 13000, ) \
    ONE(cuMemHostAlloc, 2020, ) ONE(cuMemHostGetDevicePointer, 2020, ) \
    ONE(cuMemHostGetDevicePointer, 3020, _v2) ONE(cuMemHostGetFlags, 2030, ) ONE(cuMemHostRegister, 4000, ) \
    ONE(cuMemHostRegister, 6050, _v2) ONE(cuMemHostUnregister, 4000, ) \
    ONE(cuMemImportFromShareableHandle, 10020, ) ONE(cuMemMap, 10020, ) PTSZ(cuMemMapArrayAsync, 11010, ) \
    ONE(cuMemPoolCreate, 11020, ) ONE(cuMemPoolDestroy, 11020, ) ONE(cuMemPoolExportPointer, 11020, ) \
    ONE(cuMemPoolExportToShareableHandle, 11020, ) ONE(cuMemPoolGetAccess, 11020, ) \
    ONE(cuMemPoolGetAttribute, 11020, ) ONE(cuMemPoolImportFromShareableHandle, 11020, ) \
    ONE(cuMemPoolImportPointer, 11020, ) ONE(cuMemPoolSetAccess, 11020, ) \
    ONE(cuMemPoolSetAttribute, 11020, ) ONE(cuMemPoolTrimTo, 11020, ) PTSZ(cuMemPrefetchAsync, 8000, ) \
    PTSZ(cuMemPrefetchAsync, 12020, _v2) PTSZ(cuMemPrefetchBatchAsync, 13000, ) \
    ONE(cuMemRangeGetAttribute, 8000, ) ONE(cuMemRangeGetAttributes, 8000, ) ONE(cuMemRelease, 10020, ) \
    ONE(cuMemRetainAllocationHandle, 11000, ) ONE(cuMemSetAccess, 10020, ) ONE(cuMemSetMemPool, 13000, ) \
    ONE(cuMemUnmap, 10020, ) PTDS(cuMemcpy, 4000, ) ONE(cuMemcpy2D, 2000, ) PTDS(cuMemcpy2D, 3020, _v2) \
    ONE(cuMemcpy2DAsync, 2000, ) PTSZ(cuMemcpy2DAsync, 3020, _v2) ONE(cuMemcpy2DUnaligned, 2000, ) \
    PTDS(cuMemcpy2DUnaligned, 3020, _v2) ONE(cuMemcpy3D, 2000, ) PTDS(cuMemcpy3D, 3020, _v2) \
    ONE(cuMemcpy3DAsync, 2000, ) PTSZ(cuMemcpy3DAsync, 3020, _v2) PTSZ(cuMemcpy3DBatchAsync, 12080, ) \
    PTSZ(cuMemcpy3DBatchAsync, 13000, _v2) PTDS(cuMemcpy3DPeer, 4000, ) PTSZ(cuMemcpy3DPeerAsync, 4000, ) \
    PTSZ(cuMemcpyAsync, 4000, ) ONE(cuMemcpyAtoA, 2000, ) PTDS(cuMemcpyAtoA, 3020, _v2) \
    ONE(cuMemcpyAtoD, 2000, ) PTDS(cuMemcpyAtoD, 3020, _v2) ONE(cuMemcpyAtoH, 2000, ) \
    PTDS(cuMemcpyAtoH, 3020, _v2) ONE(cuMemcpyAtoHAsync, 2000, ) PTSZ(cuMemcpyAtoHAsync, 3020, _v2) \
    PTSZ(cuMemcpyBatchAsync, 12080, ) PTSZ(cuMemcpyBatchAsync, 13000, _v2) ONE(cuMemcpyDtoA, 2000, ) \
    PTDS(cuMemcpyDtoA, 3020, _v2) ONE(cuMemcpyDtoD, 2000, ) PTDS(cuMemcpyDtoD, 3020, _v2) \
    ONE(cuMemcpyDtoDAsync, 3000, ) PTSZ(cuMemcpyDtoDAsync, 3020, _v2) ONE(cuMemcpyDtoH, 2000, ) \
    PTDS(cuMemcpyDtoH, 3020, _v2) ONE(cuMemcpyDtoHAsync, 2000, ) PTSZ(cuMemcpyDtoHAsync, 3020, _v2) \
    ONE(cuMemcpyHtoA, 2000, ) PTDS(cuMemcpyHtoA, 3020, _v2) ONE(cuMemcpyHtoAAsync, 2000, ) \
    PTSZ(cuMemcpyHtoAAsync, 3020, _v2) ONE(cuMemcpyHtoD, 2000, ) PTDS(cuMemcpyHtoD, 3020, _v2) \
    ONE(cuMemcpyHtoDAsync, 2000, ) PTSZ(cuMemcpyHtoDAsync, 3020, _v2) PTDS(cuMemcpyPeer, 4000, ) \
    PTSZ(cuMemcpyPeerAsync, 4000, ) ONE(cuMemsetD16, 2000, ) PTDS(cuMemsetD16, 3020, _v2) \
    PTSZ(cuMemsetD16Async, 3020, ) ONE(cuMemsetD2D16, 2000, ) PTDS(cuMemsetD2D16, 3020, _v2) \
    PTSZ(cuMemsetD2D16Async, 3020, ) ONE(cuMemsetD2D32, 2000, ) PTDS(cuMemsetD2D32, 3020, _v2) \
    PTSZ(cuMemsetD2D32Async, 3020, ) ONE(cuMemsetD2D8, 2000, ) PTDS(cuMemsetD2D8, 3020, _v2) \
    PTSZ(cuMemsetD2D8Async, 3020, ) ONE(cuMemsetD32, 2000, ) PTDS(cuMemsetD32, 3020, _v2) \
    PTSZ(cuMemsetD32Async, 3020, ) ONE(cuMemsetD8, 2000, ) PTDS(cuMemsetD8, 3020, _v2) \
    PTSZ(cuMemsetD8Async, 3020, ) ONE(cuMipmappedArrayCreate, 5000, ) ONE(cuMipmappedArrayDestroy, 5000, ) \
    ONE(cuMipmappedArrayGetLevel, 5000, ) ONE(cuMipmappedArrayGetMemoryRequirements, 11060, ) \
    ONE(cuMipmappedArrayGetSparseProperties, 11010, ) ONE(cuModuleEnumerateFunctions, 12040, ) \
    ONE(cuModuleGetFunction, 2000, ) ONE(cuModuleGetFunctionCount, 12040, ) ONE(cuModuleGetGlobal, 2000, ) \
    ONE(cuModuleGetGlobal, 3020, _v2) ONE(cuModuleGetLoadingMode, 11070, ) ONE(cuModuleGetSurfRef, 3000, ) \
    ONE(cuModuleGetTexRef, 2000, ) ONE(cuModuleLoad, 2000, ) ONE(cuModuleLoadData, 2000, ) \
    ONE(cuModuleLoadDataEx, 2010, ) ONE(cuModuleLoadFatBinary, 2000, ) ONE(cuModuleUnload, 2000, ) \
    ONE(cuMulticastAddDevice, 12010, ) ONE(cuMulticastBindAddr, 12010, ) ONE(cuMulticastBindAddr, 13010, _v2) \
    ONE(cuMulticastBindMem, 12010, ) ONE(cuMulticastBindMem, 13010, _v2) \
    ONE(cuMulticastCreate, 12010, ) ONE(cuMulticastGetGranularity, 12010, ) ONE(cuMulticastUnbind, 12010, ) \
    ONE(cuOccupancyAvailableDynamicSMemPerBlock, 10020, ) \
    ONE(cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050, ) \
    ONE(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, 7000, ) \
    ONE(cuOccupancyMaxActiveClusters, 11070, ) ONE(cuOccupancyMaxPotentialBlockSize, 6050, ) \
    ONE(cuOccupancyMaxPotentialBlockSizeWithFlags, 7000, ) ONE(cuOccupancyMaxPotentialClusterSize, 11070, ) \
    ONE(cuParamSetSize, 2000, ) ONE(cuParamSetTexRef, 2000, ) ONE(cuParamSetf, 2000, ) \
    ONE(cuParamSeti, 2000, ) ONE(cuParamSetv, 2000, ) ONE(cuPointerGetAttribute, 4000, ) \
    ONE(cuPointerGetAttributes, 7000, ) ONE(cuPointerSetAttribute, 6000, ) \
    ONE(cuProfilerInitialize, 4000, ) ONE(cuProfilerStart, 4000, ) ONE(cuProfilerStop, 4000, ) \
    PTSZ(cuSignalExternalSemaphoresAsync, 10000, ) PTSZ(cuStreamAddCallback, 5000, ) \
    PTSZ(cuStreamAttachMemAsync, 6000, ) PTSZ(cuStreamBatchMemOp, 8000, ) \
    PTSZ(cuStreamBatchMemOp, 11070, _v2) PTSZ(cuStreamBeginCapture, 10000, ) \
    PTSZ(cuStreamBeginCapture, 10010, _v2) PTSZ(cuStreamBeginCaptureToGraph, 12030, ) \
    PTSZ(cuStreamCopyAttributes, 11000, ) ONE(cuStreamCreate, 2000, ) \
    ONE(cuStreamCreateWithPriority, 5050, ) ONE(cuStreamDestroy, 2000, ) ONE(cuStreamDestroy, 4000, _v2) \
    PTSZ(cuStreamEndCapture, 10000, ) PTSZ(cuStreamGetAttribute, 11000, ) \
    PTSZ(cuStreamGetCaptureInfo, 10010, ) PTSZ(cuStreamGetCaptureInfo, 11030, _v2) \
    PTSZ(cuStreamGetCaptureInfo, 12030, _v3) PTSZ(cuStreamGetCtx, 9020, ) PTSZ(cuStreamGetCtx, 12050, _v2) \
    PTSZ(cuStreamGetDevice, 12080, ) PTSZ(cuStreamGetFlags, 5050, ) PTSZ(cuStreamGetId, 12000, ) \
    PTSZ(cuStreamGetPriority, 5050, ) PTSZ(cuStreamIsCapturing, 10000, ) PTSZ(cuStreamQuery, 2000, ) \
    PTSZ(cuStreamSetAttribute, 11000, ) PTSZ(cuStreamSynchronize, 2000, ) \
    PTSZ(cuStreamUpdateCaptureDependencies, 11030, ) PTSZ(cuStreamUpdateCaptureDependencies, 12030, _v2) \
    PTSZ(cuStreamWaitEvent, 3020, ) PTSZ(cuStreamWaitValue32, 8000, ) PTSZ(cuStreamWaitValue32, 11070, _v2) \
    PTSZ(cuStreamWaitValue64, 9000, ) PTSZ(cuStreamWaitValue64, 11070, _v2) \
    PTSZ(cuStreamWriteValue32, 8000, ) PTSZ(cuStreamWriteValue32, 11070, _v2) \
    PTSZ(cuStreamWriteValue64, 9000, ) PTSZ(cuStreamWriteValue64, 11070, _v2) \
    ONE(cuSurfObjectCreate, 5000, ) ONE(cuSurfObjectDestroy, 5000, ) \
    ONE(cuSurfObjectGetResourceDesc, 5000, ) ONE(cuSurfRefGetArray, 3000, ) ONE(cuSurfRefSetArray, 3000, ) \
    ONE(cuTensorMapEncodeIm2col, 12000, ) ONE(cuTensorMapEncodeTiled, 12000, ) \
    ONE(cuTensorMapReplaceAddress, 12000, ) ONE(cuTexObjectCreate, 5000, ) ONE(cuTexObjectDestroy, 5000, ) \
    ONE(cuTexObjectGetResourceDesc, 5000, ) ONE(cuTexObjectGetResourceViewDesc, 5000, ) \
    ONE(cuTexObjectGetTextureDesc, 5000, ) ONE(cuTexRefCreate, 2000, ) ONE(cuTexRefDestroy, 2000, ) \
    ONE(cuTexRefGetAddress, 2000, ) ONE(cuTexRefGetAddress, 3020, _v2) ONE(cuTexRefGetAddressMode, 2000, ) \
    ONE(cuTexRefGetArray, 2000, ) ONE(cuTexRefGetBorderColor, 8000, ) ONE(cuTexRefGetFilterMode, 2000, ) \
    ONE(cuTexRefGetFlags, 2000, ) ONE(cuTexRefGetFormat, 2000, ) ONE(cuTexRefGetMaxAnisotropy, 5000, ) \
    ONE(cuTexRefGetMipmapFilterMode, 5000, ) ONE(cuTexRefGetMipmapLevelBias, 5000, ) \
    ONE(cuTexRefGetMipmapLevelClamp, 5000, ) ONE(cuTexRefGetMipmappedArray, 5000, ) \
    ONE(cuTexRefSetAddress, 2000, ) ONE(cuTexRefSetAddress, 3020, _v2) ONE(cuTexRefSetAddress2D, 2020, ) \
    ONE(cuTexRefSetAddress2D, 3020, _v2) ONE(cuTexRefSetAddress2D, 4010, _v3) \
    ONE(cuTexRefSetAddressMode, 2000, ) ONE(cuTexRefSetArray, 2000, ) ONE(cuTexRefSetBorderColor, 8000, ) \
    ONE(cuTexRefSetFilterMode, 2000, ) ONE(cuTexRefSetFlags, 2000, ) ONE(cuTexRefSetFormat, 2000, ) \
    ONE(cuTexRefSetMaxAnisotropy, 5000, ) ONE(cuTexRefSetMipmapFilterMode, 5000, ) \
    ONE(cuTexRefSetMipmapLevelBias, 5000, ) ONE(cuTexRefSetMipmapLevelClamp, 5000, ) \
    ONE(cuTexRefSetMipmappedArray, 5000, ) ONE(cuThreadExchangeStreamCaptureMode, 10010, ) \
    ONE(cuUserObjectCreate, 11030, ) ONE(cuUserObjectRelease, 11030, ) ONE(cuUserObjectRetain, 11030, ) \
    PTSZ(cuWaitExternalSemaphoresAsync, 10000, )
/* clang-format on */

#endif
