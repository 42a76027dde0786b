"""SPIR-V 1.6 (revision 4): instructions and enumerations. Generated: do not edit.

Made by tests/kernels/make_grammar.py from spirv.core.grammar.json of SPIRV-Headers:
Copyright 2014-2024 The Khronos Group Inc., under the MIT License. Modifications to this file may mean it no longer
accurately reflects Khronos standards. The unmodified, normative versions of Khronos specifications and header
information are located at https://www.khronos.org/registry/

An entry is NUMBER:NAME or NUMBER:NAME:OPERANDS. An operand is one letter, perhaps followed by `?` (optional) or `*`
(any number): t result type, r result, i id, n literal, s string, c number as wide as the result type, o opcode and
its operands, w literal and label, m id and literal, p two ids, and the letters of KINDS.
"""

KINDS = {
    "A": "AddressingModel",
    "B": "BuiltIn",
    "C": "Capability",
    "D": "Decoration",
    "E": "ExecutionModel",
    "F": "FunctionControl",
    "G": "GroupOperation",
    "H": "FPRoundingMode",
    "I": "ImageOperands",
    "K": "LinkageType",
    "L": "LoopControl",
    "M": "MemoryAccess",
    "O": "MemoryModel",
    "P": "FPFastMathMode",
    "Q": "AccessQualifier",
    "R": "SelectionControl",
    "S": "StorageClass",
    "T": "SourceLanguage",
    "U": "Dim",
    "V": "ImageFormat",
    "W": "FunctionParameterAttribute",
    "X": "ExecutionMode",
    "Y": "CooperativeMatrixOperands",
    "Z": "TensorAddressingOperands",
    "a": "TensorOperands",
    "b": "PackedVectorFormat",
    "d": "FPEncoding",
}

# Enumerations whose value is a set of bits; the operands of the bits follow in rising order.
MASKS = "FILMPRYZa"

INSTRUCTIONS = """
0:Nop 1:Undef:tr 2:SourceContinued:s 3:Source:Tni?s? 4:SourceExtension:s 5:Name:is 6:MemberName:ins
7:String:rs 8:Line:inn 10:Extension:s 11:ExtInstImport:rs 12:ExtInst:trini* 14:MemoryModel:AO
15:EntryPoint:Eisi* 16:ExecutionMode:iX 17:Capability:C 19:TypeVoid:r 20:TypeBool:r 21:TypeInt:rnn
22:TypeFloat:rnd? 23:TypeVector:rin 24:TypeMatrix:rin 25:TypeImage:riUnnnnVQ? 26:TypeSampler:r
27:TypeSampledImage:ri 28:TypeArray:rii 29:TypeRuntimeArray:ri 30:TypeStruct:ri* 31:TypeOpaque:rs
32:TypePointer:rSi 33:TypeFunction:rii* 34:TypeEvent:r 35:TypeDeviceEvent:r 36:TypeReserveId:r
37:TypeQueue:r 38:TypePipe:rQ 39:TypeForwardPointer:iS 41:ConstantTrue:tr 42:ConstantFalse:tr
43:Constant:trc 44:ConstantComposite:tri* 45:ConstantSampler:trnnn 46:ConstantNull:tr 48:SpecConstantTrue:tr
49:SpecConstantFalse:tr 50:SpecConstant:trc 51:SpecConstantComposite:tri* 52:SpecConstantOp:tro
54:Function:trFi 55:FunctionParameter:tr 56:FunctionEnd 57:FunctionCall:trii* 59:Variable:trSi?
60:ImageTexelPointer:triii 61:Load:triM? 62:Store:iiM? 63:CopyMemory:iiM?M? 64:CopyMemorySized:iiiM?M?
65:AccessChain:trii* 66:InBoundsAccessChain:trii* 67:PtrAccessChain:triii* 68:ArrayLength:trin
69:GenericPtrMemSemantics:tri 70:InBoundsPtrAccessChain:triii* 71:Decorate:iD 72:MemberDecorate:inD
73:DecorationGroup:r 74:GroupDecorate:ii* 75:GroupMemberDecorate:im* 77:VectorExtractDynamic:trii
78:VectorInsertDynamic:triii 79:VectorShuffle:triin* 80:CompositeConstruct:tri* 81:CompositeExtract:trin*
82:CompositeInsert:triin* 83:CopyObject:tri 84:Transpose:tri 86:SampledImage:trii
87:ImageSampleImplicitLod:triiI? 88:ImageSampleExplicitLod:triiI 89:ImageSampleDrefImplicitLod:triiiI?
90:ImageSampleDrefExplicitLod:triiiI 91:ImageSampleProjImplicitLod:triiI?
92:ImageSampleProjExplicitLod:triiI 93:ImageSampleProjDrefImplicitLod:triiiI?
94:ImageSampleProjDrefExplicitLod:triiiI 95:ImageFetch:triiI? 96:ImageGather:triiiI?
97:ImageDrefGather:triiiI? 98:ImageRead:triiI? 99:ImageWrite:iiiI? 100:Image:tri 101:ImageQueryFormat:tri
102:ImageQueryOrder:tri 103:ImageQuerySizeLod:trii 104:ImageQuerySize:tri 105:ImageQueryLod:trii
106:ImageQueryLevels:tri 107:ImageQuerySamples:tri 109:ConvertFToU:tri 110:ConvertFToS:tri
111:ConvertSToF:tri 112:ConvertUToF:tri 113:UConvert:tri 114:SConvert:tri 115:FConvert:tri
116:QuantizeToF16:tri 117:ConvertPtrToU:tri 118:SatConvertSToU:tri 119:SatConvertUToS:tri
120:ConvertUToPtr:tri 121:PtrCastToGeneric:tri 122:GenericCastToPtr:tri 123:GenericCastToPtrExplicit:triS
124:Bitcast:tri 126:SNegate:tri 127:FNegate:tri 128:IAdd:trii 129:FAdd:trii 130:ISub:trii 131:FSub:trii
132:IMul:trii 133:FMul:trii 134:UDiv:trii 135:SDiv:trii 136:FDiv:trii 137:UMod:trii 138:SRem:trii
139:SMod:trii 140:FRem:trii 141:FMod:trii 142:VectorTimesScalar:trii 143:MatrixTimesScalar:trii
144:VectorTimesMatrix:trii 145:MatrixTimesVector:trii 146:MatrixTimesMatrix:trii 147:OuterProduct:trii
148:Dot:trii 149:IAddCarry:trii 150:ISubBorrow:trii 151:UMulExtended:trii 152:SMulExtended:trii 154:Any:tri
155:All:tri 156:IsNan:tri 157:IsInf:tri 158:IsFinite:tri 159:IsNormal:tri 160:SignBitSet:tri
161:LessOrGreater:trii 162:Ordered:trii 163:Unordered:trii 164:LogicalEqual:trii 165:LogicalNotEqual:trii
166:LogicalOr:trii 167:LogicalAnd:trii 168:LogicalNot:tri 169:Select:triii 170:IEqual:trii
171:INotEqual:trii 172:UGreaterThan:trii 173:SGreaterThan:trii 174:UGreaterThanEqual:trii
175:SGreaterThanEqual:trii 176:ULessThan:trii 177:SLessThan:trii 178:ULessThanEqual:trii
179:SLessThanEqual:trii 180:FOrdEqual:trii 181:FUnordEqual:trii 182:FOrdNotEqual:trii
183:FUnordNotEqual:trii 184:FOrdLessThan:trii 185:FUnordLessThan:trii 186:FOrdGreaterThan:trii
187:FUnordGreaterThan:trii 188:FOrdLessThanEqual:trii 189:FUnordLessThanEqual:trii
190:FOrdGreaterThanEqual:trii 191:FUnordGreaterThanEqual:trii 194:ShiftRightLogical:trii
195:ShiftRightArithmetic:trii 196:ShiftLeftLogical:trii 197:BitwiseOr:trii 198:BitwiseXor:trii
199:BitwiseAnd:trii 200:Not:tri 201:BitFieldInsert:triiii 202:BitFieldSExtract:triii
203:BitFieldUExtract:triii 204:BitReverse:tri 205:BitCount:tri 207:DPdx:tri 208:DPdy:tri 209:Fwidth:tri
210:DPdxFine:tri 211:DPdyFine:tri 212:FwidthFine:tri 213:DPdxCoarse:tri 214:DPdyCoarse:tri
215:FwidthCoarse:tri 218:EmitVertex 219:EndPrimitive 220:EmitStreamVertex:i 221:EndStreamPrimitive:i
224:ControlBarrier:iii 225:MemoryBarrier:ii 227:AtomicLoad:triii 228:AtomicStore:iiii
229:AtomicExchange:triiii 230:AtomicCompareExchange:triiiiii 231:AtomicCompareExchangeWeak:triiiiii
232:AtomicIIncrement:triii 233:AtomicIDecrement:triii 234:AtomicIAdd:triiii 235:AtomicISub:triiii
236:AtomicSMin:triiii 237:AtomicUMin:triiii 238:AtomicSMax:triiii 239:AtomicUMax:triiii 240:AtomicAnd:triiii
241:AtomicOr:triiii 242:AtomicXor:triiii 245:Phi:trp* 246:LoopMerge:iiL 247:SelectionMerge:iR 248:Label:r
249:Branch:i 250:BranchConditional:iiin* 251:Switch:iiw* 252:Kill 253:Return 254:ReturnValue:i
255:Unreachable 256:LifetimeStart:in 257:LifetimeStop:in 259:GroupAsyncCopy:triiiiii 260:GroupWaitEvents:iii
261:GroupAll:trii 262:GroupAny:trii 263:GroupBroadcast:triii 264:GroupIAdd:triGi 265:GroupFAdd:triGi
266:GroupFMin:triGi 267:GroupUMin:triGi 268:GroupSMin:triGi 269:GroupFMax:triGi 270:GroupUMax:triGi
271:GroupSMax:triGi 274:ReadPipe:triiii 275:WritePipe:triiii 276:ReservedReadPipe:triiiiii
277:ReservedWritePipe:triiiiii 278:ReserveReadPipePackets:triiii 279:ReserveWritePipePackets:triiii
280:CommitReadPipe:iiii 281:CommitWritePipe:iiii 282:IsValidReserveId:tri 283:GetNumPipePackets:triii
284:GetMaxPipePackets:triii 285:GroupReserveReadPipePackets:triiiii 286:GroupReserveWritePipePackets:triiiii
287:GroupCommitReadPipe:iiiii 288:GroupCommitWritePipe:iiiii 291:EnqueueMarker:triiii
292:EnqueueKernel:triiiiiiiiiii* 293:GetKernelNDrangeSubGroupCount:triiiii
294:GetKernelNDrangeMaxSubGroupSize:triiiii 295:GetKernelWorkGroupSize:triiii
296:GetKernelPreferredWorkGroupSizeMultiple:triiii 297:RetainEvent:i 298:ReleaseEvent:i
299:CreateUserEvent:tr 300:IsValidEvent:tri 301:SetUserEventStatus:ii 302:CaptureEventProfilingInfo:iii
303:GetDefaultQueue:tr 304:BuildNDRange:triii 305:ImageSparseSampleImplicitLod:triiI?
306:ImageSparseSampleExplicitLod:triiI 307:ImageSparseSampleDrefImplicitLod:triiiI?
308:ImageSparseSampleDrefExplicitLod:triiiI 309:ImageSparseSampleProjImplicitLod:triiI?
310:ImageSparseSampleProjExplicitLod:triiI 311:ImageSparseSampleProjDrefImplicitLod:triiiI?
312:ImageSparseSampleProjDrefExplicitLod:triiiI 313:ImageSparseFetch:triiI? 314:ImageSparseGather:triiiI?
315:ImageSparseDrefGather:triiiI? 316:ImageSparseTexelsResident:tri 317:NoLine
318:AtomicFlagTestAndSet:triii 319:AtomicFlagClear:iii 320:ImageSparseRead:triiI? 321:SizeOf:tri
322:TypePipeStorage:r 323:ConstantPipeStorage:trnnn 324:CreatePipeFromPipeStorage:tri
325:GetKernelLocalSizeForSubgroupCount:triiiii 326:GetKernelMaxNumSubgroups:triiii 327:TypeNamedBarrier:r
328:NamedBarrierInitialize:tri 329:MemoryNamedBarrier:iii 330:ModuleProcessed:s 331:ExecutionModeId:iX
332:DecorateId:iD 333:GroupNonUniformElect:tri 334:GroupNonUniformAll:trii 335:GroupNonUniformAny:trii
336:GroupNonUniformAllEqual:trii 337:GroupNonUniformBroadcast:triii 338:GroupNonUniformBroadcastFirst:trii
339:GroupNonUniformBallot:trii 340:GroupNonUniformInverseBallot:trii
341:GroupNonUniformBallotBitExtract:triii 342:GroupNonUniformBallotBitCount:triGi
343:GroupNonUniformBallotFindLSB:trii 344:GroupNonUniformBallotFindMSB:trii 345:GroupNonUniformShuffle:triii
346:GroupNonUniformShuffleXor:triii 347:GroupNonUniformShuffleUp:triii 348:GroupNonUniformShuffleDown:triii
349:GroupNonUniformIAdd:triGii? 350:GroupNonUniformFAdd:triGii? 351:GroupNonUniformIMul:triGii?
352:GroupNonUniformFMul:triGii? 353:GroupNonUniformSMin:triGii? 354:GroupNonUniformUMin:triGii?
355:GroupNonUniformFMin:triGii? 356:GroupNonUniformSMax:triGii? 357:GroupNonUniformUMax:triGii?
358:GroupNonUniformFMax:triGii? 359:GroupNonUniformBitwiseAnd:triGii? 360:GroupNonUniformBitwiseOr:triGii?
361:GroupNonUniformBitwiseXor:triGii? 362:GroupNonUniformLogicalAnd:triGii?
363:GroupNonUniformLogicalOr:triGii? 364:GroupNonUniformLogicalXor:triGii?
365:GroupNonUniformQuadBroadcast:triii 366:GroupNonUniformQuadSwap:triii 400:CopyLogical:tri
401:PtrEqual:trii 402:PtrNotEqual:trii 403:PtrDiff:trii 4160:ColorAttachmentReadEXT:trii?
4161:DepthAttachmentReadEXT:tri? 4162:StencilAttachmentReadEXT:tri? 4163:TypeTensorARM:rii?i?
4164:TensorReadARM:triia? 4165:TensorWriteARM:iiia? 4166:TensorQuerySizeARM:trii 4181:GraphConstantARM:trn
4182:GraphEntryPointARM:isi* 4183:GraphARM:tr 4184:GraphInputARM:trii* 4185:GraphSetOutputARM:iii*
4186:GraphEndARM 4190:TypeGraphARM:rni* 4416:TerminateInvocation 4417:TypeUntypedPointerKHR:rS
4418:UntypedVariableKHR:trSi?i? 4419:UntypedAccessChainKHR:triii* 4420:UntypedInBoundsAccessChainKHR:triii*
4421:SubgroupBallotKHR:tri 4422:SubgroupFirstInvocationKHR:tri 4423:UntypedPtrAccessChainKHR:triiii*
4424:UntypedInBoundsPtrAccessChainKHR:triiii* 4425:UntypedArrayLengthKHR:triin
4426:UntypedPrefetchKHR:iii?i?i? 4427:FmaKHR:triii 4428:SubgroupAllKHR:tri 4429:SubgroupAnyKHR:tri
4430:SubgroupAllEqualKHR:tri 4431:GroupNonUniformRotateKHR:triiii? 4432:SubgroupReadInvocationKHR:trii
4433:ExtInstWithForwardRefsKHR:trini* 4434:UntypedGroupAsyncCopyKHR:triiiiiiiM?M?
4445:TraceRayKHR:iiiiiiiiiii 4446:ExecuteCallableKHR:ii 4447:ConvertUToAccelerationStructureKHR:tri
4448:IgnoreIntersectionKHR 4449:TerminateRayKHR 4450:SDot:triib? 4451:UDot:triib? 4452:SUDot:triib?
4453:SDotAccSat:triiib? 4454:UDotAccSat:triiib? 4455:SUDotAccSat:triiib?
4456:TypeCooperativeMatrixKHR:riiiii 4457:CooperativeMatrixLoadKHR:triii?M?
4458:CooperativeMatrixStoreKHR:iiii?M? 4459:CooperativeMatrixMulAddKHR:triiiY?
4460:CooperativeMatrixLengthKHR:tri 4461:ConstantCompositeReplicateEXT:tri
4462:SpecConstantCompositeReplicateEXT:tri 4463:CompositeConstructReplicateEXT:tri 4472:TypeRayQueryKHR:r
4473:RayQueryInitializeKHR:iiiiiiii 4474:RayQueryTerminateKHR:i 4475:RayQueryGenerateIntersectionKHR:ii
4476:RayQueryConfirmIntersectionKHR:i 4477:RayQueryProceedKHR:tri 4479:RayQueryGetIntersectionTypeKHR:trii
4480:ImageSampleWeightedQCOM:triii 4481:ImageBoxFilterQCOM:triii 4482:ImageBlockMatchSSDQCOM:triiiii
4483:ImageBlockMatchSADQCOM:triiiii 4497:BitCastArrayQCOM:tri 4500:ImageBlockMatchWindowSSDQCOM:triiiii
4501:ImageBlockMatchWindowSADQCOM:triiiii 4502:ImageBlockMatchGatherSSDQCOM:triiiii
4503:ImageBlockMatchGatherSADQCOM:triiiii 4540:CompositeConstructCoopMatQCOM:tri
4541:CompositeExtractCoopMatQCOM:tri 4542:ExtractSubArrayQCOM:trii 5000:GroupIAddNonUniformAMD:triGi
5001:GroupFAddNonUniformAMD:triGi 5002:GroupFMinNonUniformAMD:triGi 5003:GroupUMinNonUniformAMD:triGi
5004:GroupSMinNonUniformAMD:triGi 5005:GroupFMaxNonUniformAMD:triGi 5006:GroupUMaxNonUniformAMD:triGi
5007:GroupSMaxNonUniformAMD:triGi 5011:FragmentMaskFetchAMD:trii 5012:FragmentFetchAMD:triii
5056:ReadClockKHR:tri 5110:GroupNonUniformQuadAllKHR:tri 5111:GroupNonUniformQuadAnyKHR:tri
5249:HitObjectRecordHitMotionNV:iiiiiiiiiiiiii 5250:HitObjectRecordHitWithIndexMotionNV:iiiiiiiiiiiii
5251:HitObjectRecordMissMotionNV:iiiiiii 5252:HitObjectGetWorldToObjectNV:tri
5253:HitObjectGetObjectToWorldNV:tri 5254:HitObjectGetObjectRayDirectionNV:tri
5255:HitObjectGetObjectRayOriginNV:tri 5256:HitObjectTraceRayMotionNV:iiiiiiiiiiiii
5257:HitObjectGetShaderRecordBufferHandleNV:tri 5258:HitObjectGetShaderBindingTableRecordIndexNV:tri
5259:HitObjectRecordEmptyNV:i 5260:HitObjectTraceRayNV:iiiiiiiiiiii 5261:HitObjectRecordHitNV:iiiiiiiiiiiii
5262:HitObjectRecordHitWithIndexNV:iiiiiiiiiiii 5263:HitObjectRecordMissNV:iiiiii
5264:HitObjectExecuteShaderNV:ii 5265:HitObjectGetCurrentTimeNV:tri 5266:HitObjectGetAttributesNV:ii
5267:HitObjectGetHitKindNV:tri 5268:HitObjectGetPrimitiveIndexNV:tri 5269:HitObjectGetGeometryIndexNV:tri
5270:HitObjectGetInstanceIdNV:tri 5271:HitObjectGetInstanceCustomIndexNV:tri
5272:HitObjectGetWorldRayDirectionNV:tri 5273:HitObjectGetWorldRayOriginNV:tri
5274:HitObjectGetRayTMaxNV:tri 5275:HitObjectGetRayTMinNV:tri 5276:HitObjectIsEmptyNV:tri
5277:HitObjectIsHitNV:tri 5278:HitObjectIsMissNV:tri 5279:ReorderThreadWithHitObjectNV:ii?i?
5280:ReorderThreadWithHintNV:ii 5281:TypeHitObjectNV:r 5283:ImageSampleFootprintNV:triiiiI?
5288:TypeCooperativeVectorNV:rii 5289:CooperativeVectorMatrixMulNV:triiiiiiiiii?Y?
5290:CooperativeVectorOuterProductAccumulateNV:iiiiiii? 5291:CooperativeVectorReduceSumAccumulateNV:iii
5292:CooperativeVectorMatrixMulAddNV:triiiiiiiiiiiii?Y? 5293:CooperativeMatrixConvertNV:tri
5294:EmitMeshTasksEXT:iiii? 5295:SetMeshOutputsEXT:ii 5296:GroupNonUniformPartitionNV:tri
5299:WritePackedPrimitiveIndices4x8NV:ii 5300:FetchMicroTriangleVertexPositionNV:triiiii
5301:FetchMicroTriangleVertexBarycentricNV:triiiii 5302:CooperativeVectorLoadNV:triiM?
5303:CooperativeVectorStoreNV:iiiM? 5304:HitObjectRecordFromQueryEXT:iiii
5305:HitObjectRecordMissEXT:iiiiiii 5306:HitObjectRecordMissMotionEXT:iiiiiiii
5307:HitObjectGetIntersectionTriangleVertexPositionsEXT:tri 5308:HitObjectGetRayFlagsEXT:tri
5309:HitObjectSetShaderBindingTableRecordIndexEXT:ii 5310:HitObjectReorderExecuteShaderEXT:iii?i?
5311:HitObjectTraceReorderExecuteEXT:iiiiiiiiiiiii?i?
5312:HitObjectTraceMotionReorderExecuteEXT:iiiiiiiiiiiiii?i? 5313:TypeHitObjectEXT:r
5314:ReorderThreadWithHintEXT:ii 5315:ReorderThreadWithHitObjectEXT:ii?i?
5316:HitObjectTraceRayEXT:iiiiiiiiiiii 5317:HitObjectTraceRayMotionEXT:iiiiiiiiiiiii
5318:HitObjectRecordEmptyEXT:i 5319:HitObjectExecuteShaderEXT:ii 5320:HitObjectGetCurrentTimeEXT:tri
5321:HitObjectGetAttributesEXT:ii 5322:HitObjectGetHitKindEXT:tri 5323:HitObjectGetPrimitiveIndexEXT:tri
5324:HitObjectGetGeometryIndexEXT:tri 5325:HitObjectGetInstanceIdEXT:tri
5326:HitObjectGetInstanceCustomIndexEXT:tri 5327:HitObjectGetObjectRayOriginEXT:tri
5328:HitObjectGetObjectRayDirectionEXT:tri 5329:HitObjectGetWorldRayDirectionEXT:tri
5330:HitObjectGetWorldRayOriginEXT:tri 5331:HitObjectGetObjectToWorldEXT:tri
5332:HitObjectGetWorldToObjectEXT:tri 5333:HitObjectGetRayTMaxEXT:tri 5334:ReportIntersectionKHR:trii
5335:IgnoreIntersectionNV 5336:TerminateRayNV 5337:TraceNV:iiiiiiiiiii 5338:TraceMotionNV:iiiiiiiiiiii
5339:TraceRayMotionNV:iiiiiiiiiiii 5340:RayQueryGetIntersectionTriangleVertexPositionsKHR:trii
5341:TypeAccelerationStructureKHR:r 5344:ExecuteCallableNV:ii 5345:RayQueryGetIntersectionClusterIdNV:trii
5346:HitObjectGetClusterIdNV:tri 5347:HitObjectGetRayTMinEXT:tri
5348:HitObjectGetShaderBindingTableRecordIndexEXT:tri 5349:HitObjectGetShaderRecordBufferHandleEXT:tri
5350:HitObjectIsEmptyEXT:tri 5351:HitObjectIsHitEXT:tri 5352:HitObjectIsMissEXT:tri
5358:TypeCooperativeMatrixNV:riiii 5359:CooperativeMatrixLoadNV:triiiM? 5360:CooperativeMatrixStoreNV:iiiiM?
5361:CooperativeMatrixMulAddNV:triii 5362:CooperativeMatrixLengthNV:tri 5364:BeginInvocationInterlockEXT
5365:EndInvocationInterlockEXT 5366:CooperativeMatrixReduceNV:trini
5367:CooperativeMatrixLoadTensorNV:triiiMZ 5368:CooperativeMatrixStoreTensorNV:iiiMZ
5369:CooperativeMatrixPerElementOpNV:triii* 5370:TypeTensorLayoutNV:rii 5371:TypeTensorViewNV:riii*
5372:CreateTensorLayoutNV:tr 5373:TensorLayoutSetDimensionNV:trii* 5374:TensorLayoutSetStrideNV:trii*
5375:TensorLayoutSliceNV:trii* 5376:TensorLayoutSetClampValueNV:trii 5377:CreateTensorViewNV:tr
5378:TensorViewSetDimensionNV:trii* 5379:TensorViewSetStrideNV:trii* 5380:DemoteToHelperInvocation
5381:IsHelperInvocationEXT:tr 5382:TensorViewSetClipNV:triiiii 5384:TensorLayoutSetBlockSizeNV:trii*
5390:CooperativeMatrixTransposeNV:tri 5391:ConvertUToImageNV:tri 5392:ConvertUToSamplerNV:tri
5393:ConvertImageToUNV:tri 5394:ConvertSamplerToUNV:tri 5395:ConvertUToSampledImageNV:tri
5396:ConvertSampledImageToUNV:tri 5397:SamplerImageAddressingModeNV:n 5398:RawAccessChainNV:triiiin?
5427:RayQueryGetIntersectionSpherePositionNV:trii 5428:RayQueryGetIntersectionSphereRadiusNV:trii
5429:RayQueryGetIntersectionLSSPositionsNV:trii 5430:RayQueryGetIntersectionLSSRadiiNV:trii
5431:RayQueryGetIntersectionLSSHitValueNV:trii 5432:HitObjectGetSpherePositionNV:tri
5433:HitObjectGetSphereRadiusNV:tri 5434:HitObjectGetLSSPositionsNV:tri 5435:HitObjectGetLSSRadiiNV:tri
5436:HitObjectIsSphereHitNV:tri 5437:HitObjectIsLSSHitNV:tri 5438:RayQueryIsSphereHitNV:trii
5439:RayQueryIsLSSHitNV:trii 5614:AtomicFMinEXT:triiii 5615:AtomicFMaxEXT:triiii 5630:AssumeTrueKHR:i
5631:ExpectKHR:trii 5632:DecorateString:iD 5633:MemberDecorateString:inD 6016:RayQueryGetRayTMinKHR:tri
6017:RayQueryGetRayFlagsKHR:tri 6018:RayQueryGetIntersectionTKHR:trii
6019:RayQueryGetIntersectionInstanceCustomIndexKHR:trii 6020:RayQueryGetIntersectionInstanceIdKHR:trii
6021:RayQueryGetIntersectionInstanceShaderBindingTableRecordOffsetKHR:trii
6022:RayQueryGetIntersectionGeometryIndexKHR:trii 6023:RayQueryGetIntersectionPrimitiveIndexKHR:trii
6024:RayQueryGetIntersectionBarycentricsKHR:trii 6025:RayQueryGetIntersectionFrontFaceKHR:trii
6026:RayQueryGetIntersectionCandidateAABBOpaqueKHR:tri
6027:RayQueryGetIntersectionObjectRayDirectionKHR:trii 6028:RayQueryGetIntersectionObjectRayOriginKHR:trii
6029:RayQueryGetWorldRayDirectionKHR:tri 6030:RayQueryGetWorldRayOriginKHR:tri
6031:RayQueryGetIntersectionObjectToWorldKHR:trii 6032:RayQueryGetIntersectionWorldToObjectKHR:trii
6035:AtomicFAddEXT:triiii 6145:ArithmeticFenceEXT:tri 6401:GroupIMulKHR:triGi 6402:GroupFMulKHR:triGi
6403:GroupBitwiseAndKHR:triGi 6404:GroupBitwiseOrKHR:triGi 6405:GroupBitwiseXorKHR:triGi
6406:GroupLogicalAndKHR:triGi 6407:GroupLogicalOrKHR:triGi 6408:GroupLogicalXorKHR:triGi
"""

# Instruction to the capabilities of which it needs any one.
NEEDED = """
24:0 29:1 31:6 34:6 35:19 36:17 37:19 38:17 39:4.5347 45:20 64:4.4473 67:4.4442.4441.5347 68:1 69:6 70:4
84:0 87:1 89:1 90:1 91:1 92:1 93:1 94:1 96:1 97:1 101:6 102:6 103:6.50 104:6.50 105:50 106:6.50 107:6.50
116:1 117:4.5347 118:6 119:6 120:4.5347 121:6 122:6 123:6 143:0 144:0 145:0 146:0 147:0 158:6 159:6 160:6
161:6 162:6 163:6 201:1.6025 202:1.6025 203:1.6025 204:1.6025 207:1 208:1 209:1 210:51 211:51 212:51 213:51
214:51 215:51 218:2 219:2 220:54 221:54 231:6 252:1 256:6 257:6 259:6 260:6 261:18 262:18 263:18 264:18
265:18 266:18 267:18 268:18 269:18 270:18 271:18 274:17 275:17 276:17 277:17 278:17 279:17 280:17 281:17
282:17 283:17 284:17 285:17 286:17 287:17 288:17 291:19 292:19 293:19 294:19 295:19 296:19 297:19 298:19
299:19 300:19 301:19 302:19 303:19 304:19 305:41 306:41 307:41 308:41 309:41 310:41 311:41 312:41 313:41
314:41 315:41 316:41 318:6 319:6 320:41 321:4 322:60 323:60 324:60 325:58 326:58 327:59 328:59 329:59 333:61
334:62 335:62 336:62 337:64 338:64 339:64 340:64 341:64 342:64 343:64 344:64 345:65 346:65 347:66 348:66
349:63.67.5297 350:63.67.5297 351:63.67.5297 352:63.67.5297 353:63.67.5297 354:63.67.5297 355:63.67.5297
356:63.67.5297 357:63.67.5297 358:63.67.5297 359:63.67.5297 360:63.67.5297 361:63.67.5297 362:63.67.5297
363:63.67.5297 364:63.67.5297 365:68 366:68 403:4.4442.4441 4160:4166 4161:4167 4162:4168 4163:4174
4164:4174 4165:4174 4166:4174 4181:4191 4182:4191 4183:4191 4184:4191 4185:4191 4186:4191 4190:4191 4416:1
4417:4473 4418:4473 4419:4473 4420:4473 4421:4423 4422:4423 4423:4473 4424:4473 4425:4473 4426:4473
4427:6030 4428:4431 4429:4431 4430:4431 4431:6026 4432:4423 4434:4473 4445:4479 4446:4479 4447:4479.4472
4448:4479 4449:4479 4450:6019 4451:6019 4452:6019 4453:6019 4454:6019 4455:6019 4456:6022 4457:6022
4458:6022 4459:6022 4460:6022 4461:6024 4462:6024 4463:6024 4472:4472 4473:4472 4474:4472 4475:4472
4476:4472 4477:4472 4479:4472 4480:4484 4481:4485 4482:4486 4483:4486 4497:4496 4500:4498 4501:4498
4502:4498 4503:4498 4540:4496 4541:4496 4542:4496 5000:18 5001:18 5002:18 5003:18 5004:18 5005:18 5006:18
5007:18 5011:5010 5012:5010 5056:5055 5110:5087 5111:5087 5249:5383.5341 5250:5383.5341 5251:5383.5341
5252:5383 5253:5383 5254:5383 5255:5383 5256:5383.5341 5257:5383 5258:5383 5259:5383 5260:5383 5261:5383
5262:5383 5263:5383 5264:5383 5265:5383 5266:5383 5267:5383 5268:5383 5269:5383 5270:5383 5271:5383
5272:5383 5273:5383 5274:5383 5275:5383 5276:5383 5277:5383 5278:5383 5279:5383 5280:5383 5281:5383
5283:5282 5288:5394 5289:5394 5290:5435 5291:5435 5292:5394 5293:5431 5294:5283 5295:5283 5296:5297
5299:5266 5300:5380 5301:5380 5302:5394 5303:5394 5304:5388 5305:5388 5306:5388.5341 5307:5388 5308:5388
5309:5388 5310:5388 5311:5388 5312:5388.5341 5313:5388 5314:5388 5315:5388 5316:5388 5317:5388.5341
5318:5388 5319:5388 5320:5388.5341 5321:5388 5322:5388 5323:5388 5324:5388 5325:5388 5326:5388 5327:5388
5328:5388 5329:5388 5330:5388 5331:5388 5332:5388 5333:5388 5334:5340.4479 5335:5340 5336:5340 5337:5340
5338:5341 5339:5341 5340:5391 5341:5340.4479.4472.5380 5344:5340 5345:5437 5346:5437 5347:5388 5348:5388
5349:5388 5350:5388 5351:5388 5352:5388 5358:5357 5359:5357 5360:5357 5361:5357 5362:5357
5364:5363.5378.5372 5365:5363.5378.5372 5366:5430 5367:5433 5368:5433 5369:5432 5370:5439 5371:5439
5372:5439 5373:5439 5374:5439 5375:5439 5376:5439 5377:5439 5378:5439 5379:5439 5380:5379 5381:5379
5382:5439 5384:5439 5390:5431 5391:5390 5392:5390 5393:5390 5394:5390 5395:5390 5396:5390 5397:5390
5398:5414 5427:5418 5428:5418 5429:5419 5430:5419 5431:5419 5432:5418 5433:5418 5434:5419 5435:5419
5436:5418 5437:5419 5438:5418 5439:5419 5614:5616.5612.5613.5404 5615:5616.5612.5613.5404 5630:5629
5631:5629 6016:4472 6017:4472 6018:4472 6019:4472 6020:4472 6021:4472 6022:4472 6023:4472 6024:4472
6025:4472 6026:4472 6027:4472 6028:4472 6029:4472 6030:4472 6031:4472 6032:4472 6035:6095.6033.6034.5404
6145:6144 6401:6400 6402:6400 6403:6400 6404:6400 6405:6400 6406:6400 6407:6400 6408:6400
"""

# Capability to those that it brings along.
IMPLIED = """
1:0 2:1 3:1 7:6 8:6 12:11 13:6 14:13 15:13 17:6 19:6 20:6 21:1 23:3 24:2 25:1 27:1 28:1 29:1 30:1 31:1 32:1
33:1 34:45 35:1 36:37 37:1 38:4 40:1 41:1 42:1 44:43 45:1 47:46 48:1 49:1 50:1 51:1 52:1 53:1 54:2 55:1 56:1
57:2 58:19 59:6 60:17 62:61 63:61 64:61 65:61 66:61 67:61 68:61 4213:4212.6022 4422:1 4427:1 4428:1
4429:4428 4430:4428 4434:4433 4439:1 4441:1 4442:4441 4445:21 4449:4448 4471:1 4472:1 4478:4472.4479 4479:1
4495:1 4496:6022 5008:1 5009:1 5010:1 5013:1 5015:1 5016:1 5067:1 5114:5112.6022 5117:5116 5118:5116.6022
5249:35 5251:2 5254:57 5255:5254 5259:5255 5260:4439 5265:1 5266:1 5283:1 5288:1 5291:1 5301:1 5302:1
5303:40 5304:46 5305:47 5306:5301 5307:5301 5308:5301 5309:5301 5310:40.5301 5311:46.5301 5312:47.5301
5336:1 5340:1 5341:1 5347:1 5350:1 5353:1 5357:1 5363:1 5372:1 5373:1 5378:1 5379:1 5380:1 5381:1 5383:4479
5388:4479 5391:1 5409:4479 5437:4479 5617:5619 5837:6 6017:39 6026:61 6150:5904 6161:5897 6229:6228
6230:6228 6243:5817.4473 6246:6245
"""

ENUMERANTS = {
    "A": """
0:Logical 1:Physical32 2:Physical64 5348:PhysicalStorageBuffer64
""",
    "B": """
0:Position 1:PointSize 3:ClipDistance 4:CullDistance 5:VertexId 6:InstanceId 7:PrimitiveId 8:InvocationId
9:Layer 10:ViewportIndex 11:TessLevelOuter 12:TessLevelInner 13:TessCoord 14:PatchVertices 15:FragCoord
16:PointCoord 17:FrontFacing 18:SampleId 19:SamplePosition 20:SampleMask 22:FragDepth 23:HelperInvocation
24:NumWorkgroups 25:WorkgroupSize 26:WorkgroupId 27:LocalInvocationId 28:GlobalInvocationId
29:LocalInvocationIndex 30:WorkDim 31:GlobalSize 32:EnqueuedWorkgroupSize 33:GlobalOffset 34:GlobalLinearId
36:SubgroupSize 37:SubgroupMaxSize 38:NumSubgroups 39:NumEnqueuedSubgroups 40:SubgroupId
41:SubgroupLocalInvocationId 42:VertexIndex 43:InstanceIndex 4160:CoreIDARM 4161:CoreCountARM
4162:CoreMaxIDARM 4163:WarpIDARM 4164:WarpMaxIDARM 4416:SubgroupEqMask 4417:SubgroupGeMask
4418:SubgroupGtMask 4419:SubgroupLeMask 4420:SubgroupLtMask 4424:BaseVertex 4425:BaseInstance 4426:DrawIndex
4432:PrimitiveShadingRateKHR 4438:DeviceIndex 4440:ViewIndex 4444:ShadingRateKHR 4492:TileOffsetQCOM
4493:TileDimensionQCOM 4494:TileApronSizeQCOM 4992:BaryCoordNoPerspAMD 4993:BaryCoordNoPerspCentroidAMD
4994:BaryCoordNoPerspSampleAMD 4995:BaryCoordSmoothAMD 4996:BaryCoordSmoothCentroidAMD
4997:BaryCoordSmoothSampleAMD 4998:BaryCoordPullModelAMD 5014:FragStencilRefEXT 5253:ViewportMaskNV
5257:SecondaryPositionNV 5258:SecondaryViewportMaskNV 5261:PositionPerViewNV 5262:ViewportMaskPerViewNV
5264:FullyCoveredEXT 5274:TaskCountNV 5275:PrimitiveCountNV 5276:PrimitiveIndicesNV
5277:ClipDistancePerViewNV 5278:CullDistancePerViewNV 5279:LayerPerViewNV 5280:MeshViewCountNV
5281:MeshViewIndicesNV 5286:BaryCoordKHR 5287:BaryCoordNoPerspKHR 5292:FragSizeEXT
5293:FragInvocationCountEXT 5294:PrimitivePointIndicesEXT 5295:PrimitiveLineIndicesEXT
5296:PrimitiveTriangleIndicesEXT 5299:CullPrimitiveEXT 5319:LaunchIdKHR 5320:LaunchSizeKHR
5321:WorldRayOriginKHR 5322:WorldRayDirectionKHR 5323:ObjectRayOriginKHR 5324:ObjectRayDirectionKHR
5325:RayTminKHR 5326:RayTmaxKHR 5327:InstanceCustomIndexKHR 5330:ObjectToWorldKHR 5331:WorldToObjectKHR
5332:HitTNV 5333:HitKindKHR 5334:CurrentRayTimeNV 5335:HitTriangleVertexPositionsKHR
5337:HitMicroTriangleVertexPositionsNV 5344:HitMicroTriangleVertexBarycentricsNV 5351:IncomingRayFlagsKHR
5352:RayGeometryIndexKHR 5359:HitIsSphereNV 5360:HitIsLSSNV 5361:HitSpherePositionNV 5374:WarpsPerSMNV
5375:SMCountNV 5376:WarpIDNV 5377:SMIDNV 5396:HitLSSPositionsNV 5405:HitKindFrontFacingMicroTriangleNV
5406:HitKindBackFacingMicroTriangleNV 5420:HitSphereRadiusNV 5421:HitLSSRadiiNV 5436:ClusterIDNV
6021:CullMaskKHR
""",
    "C": """
0:Matrix 1:Shader 2:Geometry 3:Tessellation 4:Addresses 5:Linkage 6:Kernel 7:Vector16 8:Float16Buffer
9:Float16 10:Float64 11:Int64 12:Int64Atomics 13:ImageBasic 14:ImageReadWrite 15:ImageMipmap 17:Pipes
18:Groups 19:DeviceEnqueue 20:LiteralSampler 21:AtomicStorage 22:Int16 23:TessellationPointSize
24:GeometryPointSize 25:ImageGatherExtended 27:StorageImageMultisample 28:UniformBufferArrayDynamicIndexing
29:SampledImageArrayDynamicIndexing 30:StorageBufferArrayDynamicIndexing 31:StorageImageArrayDynamicIndexing
32:ClipDistance 33:CullDistance 34:ImageCubeArray 35:SampleRateShading 36:ImageRect 37:SampledRect
38:GenericPointer 39:Int8 40:InputAttachment 41:SparseResidency 42:MinLod 43:Sampled1D 44:Image1D
45:SampledCubeArray 46:SampledBuffer 47:ImageBuffer 48:ImageMSArray 49:StorageImageExtendedFormats
50:ImageQuery 51:DerivativeControl 52:InterpolationFunction 53:TransformFeedback 54:GeometryStreams
55:StorageImageReadWithoutFormat 56:StorageImageWriteWithoutFormat 57:MultiViewport 58:SubgroupDispatch
59:NamedBarrier 60:PipeStorage 61:GroupNonUniform 62:GroupNonUniformVote 63:GroupNonUniformArithmetic
64:GroupNonUniformBallot 65:GroupNonUniformShuffle 66:GroupNonUniformShuffleRelative
67:GroupNonUniformClustered 68:GroupNonUniformQuad 69:ShaderLayer 70:ShaderViewportIndex
71:UniformDecoration 4165:CoreBuiltinsARM 4166:TileImageColorReadAccessEXT 4167:TileImageDepthReadAccessEXT
4168:TileImageStencilReadAccessEXT 4174:TensorsARM 4175:StorageTensorArrayDynamicIndexingARM
4176:StorageTensorArrayNonUniformIndexingARM 4191:GraphARM 4201:CooperativeMatrixLayoutsARM 4212:Float8EXT
4213:Float8CooperativeMatrixEXT 4422:FragmentShadingRateKHR 4423:SubgroupBallotKHR 4427:DrawParameters
4428:WorkgroupMemoryExplicitLayoutKHR 4429:WorkgroupMemoryExplicitLayout8BitAccessKHR
4430:WorkgroupMemoryExplicitLayout16BitAccessKHR 4431:SubgroupVoteKHR 4433:StorageBuffer16BitAccess
4434:UniformAndStorageBuffer16BitAccess 4435:StoragePushConstant16 4436:StorageInputOutput16
4437:DeviceGroup 4439:MultiView 4441:VariablePointersStorageBuffer 4442:VariablePointers
4445:AtomicStorageOps 4447:SampleMaskPostDepthCoverage 4448:StorageBuffer8BitAccess
4449:UniformAndStorageBuffer8BitAccess 4450:StoragePushConstant8 4464:DenormPreserve 4465:DenormFlushToZero
4466:SignedZeroInfNanPreserve 4467:RoundingModeRTE 4468:RoundingModeRTZ 4471:RayQueryProvisionalKHR
4472:RayQueryKHR 4473:UntypedPointersKHR 4478:RayTraversalPrimitiveCullingKHR 4479:RayTracingKHR
4484:TextureSampleWeightedQCOM 4485:TextureBoxFilterQCOM 4486:TextureBlockMatchQCOM 4495:TileShadingQCOM
4496:CooperativeMatrixConversionQCOM 4498:TextureBlockMatch2QCOM 5008:Float16ImageAMD
5009:ImageGatherBiasLodAMD 5010:FragmentMaskAMD 5013:StencilExportEXT 5015:ImageReadWriteLodAMD
5016:Int64ImageEXT 5055:ShaderClockKHR 5067:ShaderEnqueueAMDX 5087:QuadControlKHR 5112:Int4TypeINTEL
5114:Int4CooperativeMatrixINTEL 5116:BFloat16TypeKHR 5117:BFloat16DotProductKHR
5118:BFloat16CooperativeMatrixKHR 5249:SampleMaskOverrideCoverageNV 5251:GeometryShaderPassthroughNV
5254:ShaderViewportIndexLayerEXT 5255:ShaderViewportMaskNV 5259:ShaderStereoViewNV 5260:PerViewAttributesNV
5265:FragmentFullyCoveredEXT 5266:MeshShadingNV 5282:ImageFootprintNV 5283:MeshShadingEXT
5284:FragmentBarycentricKHR 5288:ComputeDerivativeGroupQuadsKHR 5291:FragmentDensityEXT
5297:GroupNonUniformPartitionedNV 5301:ShaderNonUniform 5302:RuntimeDescriptorArray
5303:InputAttachmentArrayDynamicIndexing 5304:UniformTexelBufferArrayDynamicIndexing
5305:StorageTexelBufferArrayDynamicIndexing 5306:UniformBufferArrayNonUniformIndexing
5307:SampledImageArrayNonUniformIndexing 5308:StorageBufferArrayNonUniformIndexing
5309:StorageImageArrayNonUniformIndexing 5310:InputAttachmentArrayNonUniformIndexing
5311:UniformTexelBufferArrayNonUniformIndexing 5312:StorageTexelBufferArrayNonUniformIndexing
5336:RayTracingPositionFetchKHR 5340:RayTracingNV 5341:RayTracingMotionBlurNV 5345:VulkanMemoryModel
5346:VulkanMemoryModelDeviceScope 5347:PhysicalStorageBufferAddresses 5350:ComputeDerivativeGroupLinearKHR
5353:RayTracingProvisionalKHR 5357:CooperativeMatrixNV 5363:FragmentShaderSampleInterlockEXT
5372:FragmentShaderShadingRateInterlockEXT 5373:ShaderSMBuiltinsNV 5378:FragmentShaderPixelInterlockEXT
5379:DemoteToHelperInvocation 5380:DisplacementMicromapNV 5381:RayTracingOpacityMicromapEXT
5383:ShaderInvocationReorderNV 5388:ShaderInvocationReorderEXT 5390:BindlessTextureNV
5391:RayQueryPositionFetchKHR 5394:CooperativeVectorNV 5404:AtomicFloat16VectorNV
5409:RayTracingDisplacementMicromapNV 5414:RawAccessChainsNV 5418:RayTracingSpheresGeometryNV
5419:RayTracingLinearSweptSpheresGeometryNV 5426:Shader64BitIndexingEXT 5430:CooperativeMatrixReductionsNV
5431:CooperativeMatrixConversionsNV 5432:CooperativeMatrixPerElementOperationsNV
5433:CooperativeMatrixTensorAddressingNV 5434:CooperativeMatrixBlockLoadsNV 5435:CooperativeVectorTrainingNV
5437:RayTracingClusterAccelerationStructureNV 5439:TensorAddressingNV 5568:SubgroupShuffleINTEL
5569:SubgroupBufferBlockIOINTEL 5570:SubgroupImageBlockIOINTEL 5579:SubgroupImageMediaBlockIOINTEL
5582:RoundToInfinityINTEL 5583:FloatingPointModeINTEL 5584:IntegerFunctions2INTEL 5603:FunctionPointersINTEL
5604:IndirectReferencesINTEL 5606:AsmINTEL 5612:AtomicFloat32MinMaxEXT 5613:AtomicFloat64MinMaxEXT
5616:AtomicFloat16MinMaxEXT 5617:VectorComputeINTEL 5619:VectorAnyINTEL 5629:ExpectAssumeKHR
5696:SubgroupAvcMotionEstimationINTEL 5697:SubgroupAvcMotionEstimationIntraINTEL
5698:SubgroupAvcMotionEstimationChromaINTEL 5817:VariableLengthArrayINTEL 5821:FunctionFloatControlINTEL
5824:FPGAMemoryAttributesALTERA 5837:FPFastMathModeINTEL 5844:ArbitraryPrecisionIntegersALTERA
5845:ArbitraryPrecisionFloatingPointALTERA 5886:UnstructuredLoopControlsINTEL 5888:FPGALoopControlsALTERA
5892:KernelAttributesINTEL 5897:FPGAKernelAttributesINTEL 5898:FPGAMemoryAccessesALTERA
5904:FPGAClusterAttributesALTERA 5906:LoopFuseALTERA 5908:FPGADSPControlALTERA
5910:MemoryAccessAliasingINTEL 5916:FPGAInvocationPipeliningAttributesALTERA 5920:FPGABufferLocationALTERA
5922:ArbitraryPrecisionFixedPointALTERA 5935:USMStorageClassesALTERA 5939:RuntimeAlignedAttributeALTERA
5943:IOPipesALTERA 5945:BlockingPipesALTERA 5948:FPGARegALTERA 6016:DotProductInputAll
6017:DotProductInput4x8Bit 6018:DotProductInput4x8BitPacked 6019:DotProduct 6020:RayCullMaskKHR
6022:CooperativeMatrixKHR 6024:ReplicatedCompositesEXT 6025:BitInstructions 6026:GroupNonUniformRotateKHR
6029:FloatControls2 6030:FMAKHR 6033:AtomicFloat32AddEXT 6034:AtomicFloat64AddEXT 6089:LongCompositesINTEL
6094:OptNoneEXT 6095:AtomicFloat16AddEXT 6114:DebugInfoModuleINTEL 6115:BFloat16ConversionINTEL
6141:SplitBarrierINTEL 6144:ArithmeticFenceEXT 6150:FPGAClusterAttributesV2ALTERA
6161:FPGAKernelAttributesv2INTEL 6162:TaskSequenceALTERA 6169:FPMaxErrorINTEL 6171:FPGALatencyControlALTERA
6174:FPGAArgumentInterfacesALTERA 6187:GlobalVariableHostAccessINTEL
6189:GlobalVariableFPGADecorationsALTERA 6220:SubgroupBufferPrefetchINTEL 6228:Subgroup2DBlockIOINTEL
6229:Subgroup2DBlockTransformINTEL 6230:Subgroup2DBlockTransposeINTEL
6236:SubgroupMatrixMultiplyAccumulateINTEL 6241:TernaryBitwiseFunctionINTEL
6243:UntypedVariableLengthArrayINTEL 6245:SpecConditionalINTEL 6246:FunctionVariantsINTEL
6400:GroupUniformArithmeticKHR 6425:TensorFloat32RoundingINTEL 6427:MaskedGatherScatterINTEL
6441:CacheControlsINTEL 6460:RegisterLimitsINTEL 6528:BindlessImagesINTEL
""",
    "D": """
0:RelaxedPrecision 1:SpecId:n 2:Block 3:BufferBlock 4:RowMajor 5:ColMajor 6:ArrayStride:n 7:MatrixStride:n
8:GLSLShared 9:GLSLPacked 10:CPacked 11:BuiltIn:B 13:NoPerspective 14:Flat 15:Patch 16:Centroid 17:Sample
18:Invariant 19:Restrict 20:Aliased 21:Volatile 22:Constant 23:Coherent 24:NonWritable 25:NonReadable
26:Uniform 27:UniformId:i 28:SaturatedConversion 29:Stream:n 30:Location:n 31:Component:n 32:Index:n
33:Binding:n 34:DescriptorSet:n 35:Offset:n 36:XfbBuffer:n 37:XfbStride:n 38:FuncParamAttr:W
39:FPRoundingMode:H 40:FPFastMathMode:P 41:LinkageAttributes:sK 42:NoContraction 43:InputAttachmentIndex:n
44:Alignment:n 45:MaxByteOffset:n 46:AlignmentId:i 47:MaxByteOffsetId:i
4216:SaturatedToLargestFloat8NormalConversionEXT 4469:NoSignedWrap 4470:NoUnsignedWrap
4487:WeightTextureQCOM 4488:BlockMatchTextureQCOM 4499:BlockMatchSamplerQCOM 4999:ExplicitInterpAMD
5248:OverrideCoverageNV 5250:PassthroughNV 5252:ViewportRelativeNV 5256:SecondaryViewportRelativeNV:n
5271:PerPrimitiveEXT 5272:PerViewNV 5273:PerTaskNV 5285:PerVertexKHR 5300:NonUniform 5355:RestrictPointer
5356:AliasedPointer 5386:HitObjectShaderRecordBufferNV 5389:HitObjectShaderRecordBufferEXT
5398:BindlessSamplerNV 5399:BindlessImageNV 5400:BoundSamplerNV 5401:BoundImageNV 5634:CounterBuffer:i
5635:UserSemantic:s 5636:UserTypeGOOGLE:s
""",
    "E": """
0:Vertex 1:TessellationControl 2:TessellationEvaluation 3:Geometry 4:Fragment 5:GLCompute 6:Kernel
5267:TaskNV 5268:MeshNV 5313:RayGenerationKHR 5314:IntersectionKHR 5315:AnyHitKHR 5316:ClosestHitKHR
5317:MissKHR 5318:CallableKHR 5364:TaskEXT 5365:MeshEXT
""",
    "F": """
0:None 1:Inline 2:DontInline 4:Pure 8:Const 65536:OptNoneEXT
""",
    "G": """
0:Reduce 1:InclusiveScan 2:ExclusiveScan 3:ClusteredReduce 6:PartitionedReduceNV
7:PartitionedInclusiveScanNV 8:PartitionedExclusiveScanNV
""",
    "H": """
0:RTE 1:RTZ 2:RTP 3:RTN
""",
    "I": """
0:None 1:Bias:i 2:Lod:i 4:Grad:ii 8:ConstOffset:i 16:Offset:i 32:ConstOffsets:i 64:Sample:i 128:MinLod:i
256:MakeTexelAvailable:i 512:MakeTexelVisible:i 1024:NonPrivateTexel 2048:VolatileTexel 4096:SignExtend
8192:ZeroExtend 16384:Nontemporal 65536:Offsets:i
""",
    "K": """
0:Export 1:Import 2:LinkOnceODR
""",
    "L": """
0:None 1:Unroll 2:DontUnroll 4:DependencyInfinite 8:DependencyLength:n 16:MinIterations:n 32:MaxIterations:n
64:IterationMultiple:n 128:PeelCount:n 256:PartialCount:n
""",
    "M": """
0:None 1:Volatile 2:Aligned:n 4:Nontemporal 8:MakePointerAvailable:i 16:MakePointerVisible:i
32:NonPrivatePointer
""",
    "O": """
0:Simple 1:GLSL450 2:OpenCL 3:Vulkan
""",
    "P": """
0:None 1:NotNaN 2:NotInf 4:NSZ 8:AllowRecip 16:Fast 65536:AllowContract 131072:AllowReassoc
262144:AllowTransform
""",
    "Q": """
0:ReadOnly 1:WriteOnly 2:ReadWrite
""",
    "R": """
0:None 1:Flatten 2:DontFlatten
""",
    "S": """
0:UniformConstant 1:Input 2:Uniform 3:Output 4:Workgroup 5:CrossWorkgroup 6:Private 7:Function 8:Generic
9:PushConstant 10:AtomicCounter 11:Image 12:StorageBuffer 4172:TileImageEXT 4491:TileAttachmentQCOM
5328:CallableDataKHR 5329:IncomingCallableDataKHR 5338:RayPayloadKHR 5339:HitAttributeKHR
5342:IncomingRayPayloadKHR 5343:ShaderRecordBufferKHR 5349:PhysicalStorageBuffer 5385:HitObjectAttributeNV
5402:TaskPayloadWorkgroupEXT 5411:HitObjectAttributeEXT
""",
    "T": """
0:Unknown 1:ESSL 2:GLSL 3:OpenCL_C 4:OpenCL_CPP 5:HLSL 6:CPP_for_OpenCL 7:SYCL 8:HERO_C 9:NZSL 10:WGSL
11:Slang 12:Zig 13:Rust
""",
    "U": """
0:1D 1:2D 2:3D 3:Cube 4:Rect 5:Buffer 6:SubpassData 4173:TileImageDataEXT
""",
    "V": """
0:Unknown 1:Rgba32f 2:Rgba16f 3:R32f 4:Rgba8 5:Rgba8Snorm 6:Rg32f 7:Rg16f 8:R11fG11fB10f 9:R16f 10:Rgba16
11:Rgb10A2 12:Rg16 13:Rg8 14:R16 15:R8 16:Rgba16Snorm 17:Rg16Snorm 18:Rg8Snorm 19:R16Snorm 20:R8Snorm
21:Rgba32i 22:Rgba16i 23:Rgba8i 24:R32i 25:Rg32i 26:Rg16i 27:Rg8i 28:R16i 29:R8i 30:Rgba32ui 31:Rgba16ui
32:Rgba8ui 33:R32ui 34:Rgb10a2ui 35:Rg32ui 36:Rg16ui 37:Rg8ui 38:R16ui 39:R8ui 40:R64ui 41:R64i
""",
    "W": """
0:Zext 1:Sext 2:ByVal 3:Sret 4:NoAlias 5:NoCapture 6:NoWrite 7:NoReadWrite
""",
    "X": """
0:Invocations:n 1:SpacingEqual 2:SpacingFractionalEven 3:SpacingFractionalOdd 4:VertexOrderCw
5:VertexOrderCcw 6:PixelCenterInteger 7:OriginUpperLeft 8:OriginLowerLeft 9:EarlyFragmentTests 10:PointMode
11:Xfb 12:DepthReplacing 14:DepthGreater 15:DepthLess 16:DepthUnchanged 17:LocalSize:nnn
18:LocalSizeHint:nnn 19:InputPoints 20:InputLines 21:InputLinesAdjacency 22:Triangles
23:InputTrianglesAdjacency 24:Quads 25:Isolines 26:OutputVertices:n 27:OutputPoints 28:OutputLineStrip
29:OutputTriangleStrip 30:VecTypeHint:n 31:ContractionOff 33:Initializer 34:Finalizer 35:SubgroupSize:n
36:SubgroupsPerWorkgroup:n 37:SubgroupsPerWorkgroupId:i 38:LocalSizeId:iii 39:LocalSizeHintId:iii
4169:NonCoherentColorAttachmentReadEXT 4170:NonCoherentDepthAttachmentReadEXT
4171:NonCoherentStencilAttachmentReadEXT 4421:SubgroupUniformControlFlowKHR 4446:PostDepthCoverage
4459:DenormPreserve:n 4460:DenormFlushToZero:n 4461:SignedZeroInfNanPreserve:n 4462:RoundingModeRTE:n
4463:RoundingModeRTZ:n 4489:NonCoherentTileAttachmentReadQCOM 4490:TileShadingRateQCOM:nnn
5017:EarlyAndLateFragmentTestsAMD 5027:StencilRefReplacingEXT 5079:StencilRefUnchangedFrontAMD
5080:StencilRefGreaterFrontAMD 5081:StencilRefLessFrontAMD 5082:StencilRefUnchangedBackAMD
5083:StencilRefGreaterBackAMD 5084:StencilRefLessBackAMD 5088:QuadDerivativesKHR 5089:RequireFullQuadsKHR
5269:OutputLinesEXT 5270:OutputPrimitivesEXT:n 5289:DerivativeGroupQuadsKHR 5290:DerivativeGroupLinearKHR
5298:OutputTrianglesEXT 5366:PixelInterlockOrderedEXT 5367:PixelInterlockUnorderedEXT
5368:SampleInterlockOrderedEXT 5369:SampleInterlockUnorderedEXT 5370:ShadingRateInterlockOrderedEXT
5371:ShadingRateInterlockUnorderedEXT 5427:Shader64BitIndexingEXT 6023:MaximallyReconvergesKHR
6028:FPFastMathDefault:ii
""",
    "Y": """
0:NoneKHR 1:MatrixASignedComponentsKHR 2:MatrixBSignedComponentsKHR 4:MatrixCSignedComponentsKHR
8:MatrixResultSignedComponentsKHR 16:SaturatingAccumulationKHR
""",
    "Z": """
0:None 1:TensorView:i 2:DecodeFunc:i
""",
    "a": """
0:NoneARM 1:NontemporalARM 2:OutOfBoundsValueARM:i 4:MakeElementAvailableARM:i 8:MakeElementVisibleARM:i
16:NonPrivateElementARM
""",
    "b": """
0:PackedVectorFormat4x8Bit
""",
    "d": """
0:BFloat16KHR 4214:Float8E4M3EXT 4215:Float8E5M2EXT
""",
}
