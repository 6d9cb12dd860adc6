// The original weights in TensorFlow.js, run by golden.py:
//   node golden.mjs MODEL_FOLDER INPUT OUTPUT
// INPUT holds float32 [n, 224, 224, 3], OUTPUT gets float32 [n, 2, 1000]: logits and probabilities.
import { createRequire } from 'node:module';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

// Found from the working folder, where `npm install @tensorflow/tfjs` was run.
const tf = createRequire(join(process.cwd(), 'package.json'))('@tensorflow/tfjs');
const [folder, input, output] = process.argv.slice(2);
const floats = (bytes) => new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));

const description = JSON.parse(readFileSync(join(folder, 'model.json')));
const [group] = description.weightsManifest;
const shards = Buffer.concat(group.paths.map((path) => readFileSync(join(folder, path))));
const model = await tf.loadLayersModel(tf.io.fromMemory({
  modelTopology: description.modelTopology,
  weightSpecs: group.weights,
  weightData: shards.buffer.slice(shards.byteOffset, shards.byteOffset + shards.length),
}));

// The last layer has the softmax in it: its logits are worked out from the layer before.
const pooled = tf.model({ inputs: model.inputs, outputs: model.getLayer('avg_pool').output });
const [kernel, bias] = model.getLayer('fc1000').getWeights();
const pixels = floats(readFileSync(input));
const pictures = tf.tensor4d(pixels, [pixels.length / (224 * 224 * 3), 224, 224, 3]);
const logits = pooled.predict(pictures).matMul(kernel).add(bias);
const both = tf.stack([logits, model.predict(pictures)], 1);
writeFileSync(output, Buffer.from((await both.data()).buffer));
